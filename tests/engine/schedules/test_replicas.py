"""Which worker a minibatch goes to, and what workers are called."""

from pipetrain.engine.schedules import Placement, Replicas
from pipetrain.engine.schedules.gpipe import GPipe
from pipetrain.engine.schedules.round_robin import RoundRobin


def test_minibatch_of_a_stage_goes_to_its_replicas_in_turn():
    replicas = Replicas((2, 3, 1))
    assert [replicas.worker(0, t) for t in range(4)] == [0, 1, 0, 1]
    assert [replicas.worker(1, t) for t in range(4)] == [2, 3, 4, 2]
    assert [replicas.worker(2, t) for t in range(4)] == [5, 5, 5, 5]
    assert [*replicas.own(3, 9)] == [1, 4, 7]


def test_stage_rounds_end_with_last_replica_or_drain():
    assert Replicas((2, 3)).round_ends(1, 7) == [2, 5, 6]
    assert [Replicas((2, 3)).round_of(1, t) for t in (2, 3, 6)] == [0, 1, 2]


def test_worker_name_has_stage_and_replica_if_several():
    replicas = Replicas((2, 1))
    assert [replicas.name(w) for w in range(3)] == ["stage 0, replica 0", "stage 0, replica 1", "stage 1"]
    assert replicas.labels == ("0.0", "0.1", "1")


def test_placement_has_process_per_replica_and_recording_rank():
    placement = RoundRobin(GPipe(), Replicas((1, 2))).placement(2)
    assert placement == Placement(((0,), (1,), (1,)))
    assert (placement.of_last_stage, placement.replica_of(2)) == (1, 1)
    assert [placement.name(p) for p in range(3)] == ["stage 0", "stage 1, replica 0", "stage 1, replica 1"]
    assert placement.in_order([["a"], ["b"], ["c"]]) == ["a", "b", "c"]
