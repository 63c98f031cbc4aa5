"""The lists that a worker reads, and the order and direction in which neighbors connect over NCCL."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from pipetrain.engine.executors.messages.links import Links
from pipetrain.engine.executors.messages.neighbors import Connections, Neighbors, groups_of_neighbors
from pipetrain.engine.executors.messages.transport import Transport
from pipetrain.engine.executors.pipeline_rules import PipelineRules
from pipetrain.engine.executors.read_cursor import ReadCursor
from pipetrain.engine.executors.replicas.overlapped_averaging import ReplicaGroups
from pipetrain.engine.methods.pipedream import PipeDream
from pipetrain.engine.program.drain_interval import DrainInterval
from pipetrain.engine.schedules import Kind, Replicas
from pipetrain.engine.schedules.one_f_one_b import OneFOneB
from pipetrain.engine.schedules.round_robin import RoundRobin

DIRECT, HOST = (Transport(torch.device("cpu"), backend) for backend in ("nccl", "gloo"))


def first_calls(monkeypatch, rank, replicas, transport=DIRECT):
    """((group, source, target) of each call that blocks until the other end has made its own, the groups)."""
    calls, made = [], []

    def new_group(ranks, backend, **_):
        made.append(ranks)
        return len(made), backend

    monkeypatch.setattr(dist, "new_group", new_group)
    monkeypatch.setattr(dist, "get_rank", lambda: rank)
    monkeypatch.setattr(dist, "send", lambda _tensor, peer, group: calls.append((group, rank, peer)))
    monkeypatch.setattr(dist, "recv", lambda _tensor, peer, group: calls.append((group, peer, rank)))
    options = SimpleNamespace(Options=lambda: SimpleNamespace(config=SimpleNamespace()))
    monkeypatch.setattr(dist, "ProcessGroupNCCL", options, raising=False)
    return calls, groups_of_neighbors(replicas, Links(transport))


@pytest.mark.parametrize("transport", [DIRECT, HOST], ids=["nccl", "gloo"])
@pytest.mark.parametrize(
    ("counts", "most"),
    [
        ((1,), 0), ((1, 1), 2), ((1,) * 3, 4), ((1,) * 5, 4), ((1,) * 64, 4), ((4, 4), 2), ((4,) * 5, 4), ((2, 1), 4),
        ((15, 1), 30), ((1, 2, 1, 1), 8), ((2, 3, 1), 18),
    ],
    ids=str,
)  # fmt: skip
def test_neighbors_connect_along_messages_in_few_rounds(monkeypatch, counts, most, transport):
    pending, groups, replicas = {}, {}, Replicas(counts)
    for rank in range(replicas.num_workers):
        pending[rank], groups = first_calls(monkeypatch, rank, replicas, transport)
    met, rounds = [], 0
    while any(pending.values()):
        rounds += 1
        heads = {rank: calls[0] for rank, calls in pending.items() if calls}
        ready = [call for rank, call in heads.items() if rank == call[1] and heads.get(call[2]) == call]
        assert ready, f"all wait: {heads}"
        for call in ready:
            assert pending[call[1]].pop(0) == pending[call[2]].pop(0)
            met.append(call)
    # NCCL connects each direction in its first message: those of a forward group go on, of a backward group back
    wanted = {
        (group, *(pair if kind is Kind.FORWARD else reversed(pair)))
        for (pair, kind), each in groups.items()
        for group in (each.payload, each.headers)
    }
    assert sorted(met) == sorted(wanted)
    assert rounds <= most * (2 if transport.direct else 1), "headers connect in rounds of their own"


def test_device_message_shapes_travel_in_host_memory(monkeypatch):
    _, groups = first_calls(monkeypatch, 0, Replicas((1, 1)))
    assert len({each.headers for each in groups.values()}) == 1
    assert {each.headers[1] for each in groups.values()} == {"gloo"}
    assert {each.payload[1] for each in groups.values()} == {"nccl"}


@pytest.mark.parametrize(
    ("counts", "worker", "read"),
    [((1,) * 512, 256, {0, 255, 256, 257}), ((2, 3, 1, 1), 2, {0, 1, 2, 5}), ((2, 3, 1, 1), 6, {0, 1, 5, 6})],
    ids=["512", "replica", "last"],
)
def test_worker_makes_lists_of_itself_its_neighbors_and_stage_0(monkeypatch, counts, worker, read):
    replicas, made = Replicas(counts), set()

    class Noting(RoundRobin):
        def of_worker(self, worker, *numbers):
            made.add(worker)
            return super().of_worker(worker, *numbers)

    monkeypatch.setattr(dist, "get_rank", lambda: worker)
    monkeypatch.setattr(dist, "new_group", lambda *_, **__: None)
    monkeypatch.setattr(dist, "irecv", lambda *_: SimpleNamespace(wait=None))
    for first_call in ("send", "recv"):
        monkeypatch.setattr(dist, first_call, lambda *_: None)
    rules = PipelineRules(Noting(OneFOneB(), replicas), PipeDream(), len(counts), 1)
    stage, replica = replicas.places[worker]
    own = SimpleNamespace(index=stage, replica=replica, ties=[], updates=0)
    monkeypatch.setattr(ReplicaGroups, "of", lambda *_: None)
    transport, waiting = Transport(torch.device("cpu")), lambda _what: nullcontext()
    ports = Neighbors(own, Connections([own], rules, transport, waiting))
    keys = {(t, j): 1 for t in range(60) for j in (0, None)}
    ports.begin(60, ReadCursor(own, rules, DrainInterval.whole(60)), keys)
    assert made == read
