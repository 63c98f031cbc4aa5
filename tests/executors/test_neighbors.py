"""The order in which neighbors that exchange messages over NCCL connect."""

import pytest
import torch
import torch.distributed as dist

from pipetrain.executors.neighbors import groups_of_neighbors
from pipetrain.schedules import Replicas


def first_calls(monkeypatch, rank, replicas):
    """(group, the other process) of each call that would block until the other has made it too."""
    calls, made = [], []

    def new_group(ranks, backend, **_):
        assert backend == "nccl"
        made.append(tuple(ranks))
        return len(made), tuple(ranks)

    monkeypatch.setattr(dist, "new_group", new_group)
    monkeypatch.setattr(dist, "get_rank", lambda: rank)
    for call in ("send", "recv"):
        monkeypatch.setattr(dist, call, lambda _tensor, peer, group: calls.append((group, peer)))
    groups = groups_of_neighbors(replicas, torch.device("cpu"), device_to_device=True)
    return calls, groups


@pytest.mark.parametrize("counts", [(1,), (1, 1), (1,) * 3, (1,) * 5, (1,) * 8, (2, 1), (2, 3, 1), (4, 4)], ids=str)
def test_neighbors_connect_without_waiting_for_each_other_in_a_ring(monkeypatch, counts):
    pending, groups, replicas = {}, {}, Replicas(counts)
    for rank in range(replicas.num_workers):
        pending[rank], groups = first_calls(monkeypatch, rank, replicas)
    met = []
    while any(pending.values()):
        heads = {rank: calls[0] for rank, calls in pending.items() if calls}
        ready = [r for r, (group, peer) in heads.items() if r < peer and heads.get(peer) == (group, r)]
        assert ready, f"all wait: {heads}"
        for rank in ready:
            group, peer = pending[rank].pop(0)
            pending[peer].pop(0)
            met.append(group)
    assert sorted(met) == sorted(groups.values())  # each group once, so that no later call connects
