"""Operation lists of replicated stages: drawn by hand, without deadlock, and with the numbers of PipeDream § 3.2."""

from textwrap import dedent

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.checked_lists import checked_lists

from pipetrain.engine.program.playback import grid
from pipetrain.engine.program.steady_state import peak_in_flight
from pipetrain.engine.schedules import Kind, Replicas
from pipetrain.engine.schedules.gpipe import GPipe
from pipetrain.engine.schedules.nf1b import NF1B
from pipetrain.engine.schedules.one_f_one_b import OneFOneB, OneFOneBFlush
from pipetrain.engine.schedules.pipelined_backprop import PipelinedBackprop, PipeMareSchedule
from pipetrain.engine.schedules.round_robin import RoundRobin
from pipetrain.engine.schedules.sequential import Sequential

SCHEDULES = [Sequential(), GPipe(), OneFOneBFlush(), OneFOneB(), PipelinedBackprop(), PipeMareSchedule(), NF1B()]


def ahead_of_the_paper(schedule, counts, r):
    """Minibatches of a replica between its forward and its backward; W workers from the stage to the last."""
    W, R = sum(counts[r:]), counts[r]
    if schedule.synchronous:
        return 0
    if isinstance(schedule, PipeMareSchedule):
        return (2 * (W - 1) + 1) // R
    return (2 if isinstance(schedule, PipelinedBackprop) else 1) * ((W - 1) // R)


def test_1f1b_rr_of_two_replicas_and_one_is_the_one_of_the_paper():
    """PipeDream, figure 8."""
    schedule, replicas = RoundRobin(OneFOneB(), Replicas((2, 1))), Replicas((2, 1))
    lists = checked_lists(schedule, 2, 1, 4)
    assert grid(lists, replicas=replicas) == dedent(
        """
        stage 0, replica 0  F0.0 F2.0  .   B0.0  .    .    .   B2.0
        stage 0, replica 1  F1.0 F3.0  .    .    .   B1.0  .    .    .   B3.0
        stage 1              .   F0.0 B0.0 F1.0 B1.0 F2.0 B2.0 F3.0 B3.0
        """
    ).strip("\n")
    assert [str(op) for op in lists[1]] == ["F1.0", "F3.0", "B1.0", "U1", "B3.0", "U3"]


def test_idle_replica_in_last_round_still_updates():
    lists = checked_lists(RoundRobin(OneFOneB(), Replicas((3, 1))), 2, 1, 4)
    assert [str(op) for op in lists[0] if op.kind is Kind.UPDATE] == ["U2", "U3"]
    assert [str(op) for op in lists[2]] == ["F2.0", "B2.0", "U2", "U3"]


def test_replicas_of_all_stages_alike_are_pipelines_side_by_side():
    lists = checked_lists(RoundRobin(OneFOneB(), Replicas((2, 2))), 2, 2, 4)
    alone = OneFOneB().operations(0, 2, 2, 2)
    assert [str(op.kind) for op in lists[1]] == [str(op.kind) for op in alone]
    assert {op.minibatch for op in lists[1]} == {1, 3}


@settings(max_examples=60)
@given(
    st.sampled_from(SCHEDULES),
    st.lists(st.integers(1, 4), min_size=1, max_size=4),
    st.integers(1, 3),
    st.integers(1, 14),
)
def test_replica_lists_never_deadlock_and_match_closed_form(schedule, counts, N, M):
    replicated, D = RoundRobin(schedule, Replicas(tuple(counts))), len(counts)
    lists = checked_lists(replicated, D, N, M)  # validates them, and plays them against each other
    for worker, operations in enumerate(lists):
        r, updates = replicated.workers.stage_of(worker), 0
        for op in operations:
            if op.kind is Kind.FORWARD:
                assert replicated.newest_at_forward(r, D, N, op.minibatch, op.microbatch) == updates
            elif op.kind is Kind.BACKWARD:
                assert op.minibatch // counts[r] == updates
            updates += op.kind is Kind.UPDATE
        assert updates == -(-M // counts[r])


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda schedule: schedule.name)
@pytest.mark.parametrize("counts", [(2, 1), (1, 2), (3, 1), (2, 3, 1), (1, 4, 1)], ids=str)
def test_replica_in_flight_count_matches_the_paper(schedule, counts):
    replicated = RoundRobin(schedule, Replicas(counts))
    lists = checked_lists(replicated, len(counts), 1, 60)
    for worker, operations in enumerate(lists):
        r = replicated.workers.stage_of(worker)
        ahead = ahead_of_the_paper(schedule, counts, r)
        assert (replicated.delay(r, len(counts), 1), peak_in_flight(operations, 1)) == (ahead, ahead + 1)
    if isinstance(schedule, OneFOneB):  # NOAM
        assert peak_in_flight(lists[0], 1) == -(-sum(counts) // counts[0])


def test_learning_rates_follow_the_replicas_unless_told_not_to():
    assert [RoundRobin(GPipe(), Replicas((2, 1))).rate_scale(r) for r in range(2)] == [1.0, 0.5]
    assert RoundRobin(GPipe(), Replicas((2, 1)), scale_lr=False).rate_scale(1) == 1.0
