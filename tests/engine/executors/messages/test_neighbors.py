"""The order and the direction in which neighbors that exchange messages over NCCL connect."""

from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from pipetrain.engine.executors.messages.links import Links
from pipetrain.engine.executors.messages.neighbors import groups_of_neighbors
from pipetrain.engine.executors.messages.transport import Transport
from pipetrain.engine.schedules import Replicas

DIRECT = Transport(torch.device("cpu"), "nccl")


def first_calls(monkeypatch, rank, replicas):
    """((group, source, target) of each call that blocks until the other end has made its own, the groups)."""
    calls, made = [], []

    def new_group(ranks, backend, **_):
        if backend == "nccl":
            made.append(tuple(ranks))
        return len(made), backend

    monkeypatch.setattr(dist, "new_group", new_group)
    monkeypatch.setattr(dist, "get_rank", lambda: rank)
    monkeypatch.setattr(dist, "send", lambda _tensor, peer, group: calls.append((group, rank, peer)))
    monkeypatch.setattr(dist, "recv", lambda _tensor, peer, group: calls.append((group, peer, rank)))
    options = SimpleNamespace(Options=lambda: SimpleNamespace(config=SimpleNamespace()))
    monkeypatch.setattr(dist, "ProcessGroupNCCL", options, raising=False)
    return calls, groups_of_neighbors(replicas, Links(DIRECT))


@pytest.mark.parametrize("counts", [(1,), (1, 1), (1,) * 3, (1,) * 5, (1,) * 8, (2, 1), (2, 3, 1), (4, 4)], ids=str)
def test_neighbors_connect_along_messages_and_not_in_a_ring(monkeypatch, counts):
    pending, groups, replicas = {}, {}, Replicas(counts)
    for rank in range(replicas.num_workers):
        pending[rank], groups = first_calls(monkeypatch, rank, replicas)
    met = []
    while any(pending.values()):
        heads = {rank: calls[0] for rank, calls in pending.items() if calls}
        ready = [call for rank, call in heads.items() if rank == call[1] and heads.get(call[2]) == call]
        assert ready, f"all wait: {heads}"
        for call in ready:
            assert pending[call[1]].pop(0) == pending[call[2]].pop(0)
            met.append(call)
    # NCCL connects each direction in its first message: those of a forward group go on, of a backward group back
    wanted = [(each.payload, *(pair if forward else reversed(pair))) for (pair, forward), each in groups.items()]
    assert sorted(met) == sorted(wanted)


def test_device_message_shapes_travel_in_host_memory(monkeypatch):
    _, groups = first_calls(monkeypatch, 0, Replicas((1, 1)))
    assert {each.headers[1] for each in groups.values()} == {"gloo"}
    assert {each.payload[1] for each in groups.values()} == {"nccl"}
