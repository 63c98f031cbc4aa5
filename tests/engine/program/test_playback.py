"""When operations run, and how much of its time a stage idles, against closed forms."""

from textwrap import dedent

import pytest
from support.checked_lists import checked_lists

from pipetrain.engine.program.playback import (
    DeadlockError,
    MessageTimes,
    grid,
    idle_shares,
    play,
    step_times,
    unit_duration,
)
from pipetrain.engine.program.recomputation import RecomputeSegments
from pipetrain.engine.schedules.gpipe import GPipe
from pipetrain.engine.schedules.nf1b import NF1B
from pipetrain.engine.schedules.one_f_one_b import OneFOneB, OneFOneBFlush
from pipetrain.engine.schedules.operation import Kind, Operation
from pipetrain.engine.schedules.pipelined_backprop import PipelinedBackprop, PipeMareSchedule
from pipetrain.engine.schedules.replicas import Replicas
from pipetrain.engine.schedules.round_robin import RoundRobin
from pipetrain.engine.schedules.sequential import DataParallel, Sequential


def played(schedule, D, N, M, duration=unit_duration):
    return play([schedule.operations(r, D, N, M) for r in range(D)], duration)


def length(slices):
    return max(row[-1].end for row in slices)


@pytest.mark.parametrize(("D", "N"), [(1, 2), (2, 5), (4, 1), (7, 8)])
@pytest.mark.parametrize("schedule", [GPipe(), OneFOneBFlush()])
def test_flushed_playback_idles_d_minus_1_of_n_plus_d_minus_1(schedule, D, N):
    assert idle_shares(played(schedule, D, N, 3)) == pytest.approx([(D - 1) / (N + D - 1)] * D)


@pytest.mark.parametrize(("delay", "end"), [(None, 20), (0, 20), (1, 15), (2, 14), (5, 14)])
def test_replicas_that_train_alone_wait_for_those_further_behind_than_their_delay(delay, end):
    """The first of two replicas is slow in two rounds, then the second is."""
    schedule = RoundRobin(DataParallel(), Replicas((2,), delay))

    def duration(worker, op):
        slow = op.minibatch // 4 == worker
        return {Kind.FORWARD: 4.0 if slow else 1.0, Kind.BACKWARD: 1.0, Kind.UPDATE: 0.0}[op.kind]

    lists = [schedule.of_worker(worker, 1, 1, 8) for worker in range(2)]
    assert length(play(lists, duration, replicas=schedule.workers)) == end


def test_operation_starts_when_its_stage_and_its_input_are_ready():
    rows = played(OneFOneB(), 3, 2, 3)
    ends = {(r, s.operation): s.end for r, row in enumerate(rows) for s in row}
    for r, row in enumerate(rows):
        free = 0.0
        for s in row:
            source = {Kind.FORWARD: r - 1, Kind.BACKWARD: r + 1}.get(s.operation.kind, -1)
            arrived = ends.get((source, s.operation), 0.0) if 0 <= source < len(rows) else 0.0
            assert s.start == max(free, arrived)
            free = s.end


def test_whole_minibatch_backward_starts_after_last_forward():
    def duration(_stage, operation):
        return {Kind.FORWARD: 1.0, Kind.BACKWARD: 6.0, Kind.UPDATE: 0.0}[operation.kind]

    (first, last) = played(NF1B(), 2, 3, 1, duration)
    assert [s.start for s in first] == [0.0, 1.0, 2.0, 10.0, 16.0]
    assert [s.start for s in last] == [1.0, 2.0, 3.0, 4.0, 10.0]


def test_recomputation_waits_for_previous_stage_in_segment_only():
    ends = {}
    for firsts in ((0, 1), (0,)):
        segments = RecomputeSegments(firsts, 2)
        lists = checked_lists(PipeMareSchedule(), 2, 1, 8, segments)
        rows = play(lists, lambda stage, op: 7.0 if stage == 0 and op.kind is Kind.RECOMPUTATION else 1.0, segments)
        ends[firsts] = [{s.operation: s for s in row} for row in rows]
    waits = [Operation.parse(f"R{t}.0") for t in range(8)]
    assert all(ends[0,][1][op].start >= ends[0,][0][op].end for op in waits)
    assert any(ends[0, 1][1][op].start < ends[0, 1][0][op].end for op in waits)


def test_message_takes_its_transfer_time_and_occupies_no_stage():
    lists = checked_lists(GPipe(), 2, 2, 1)
    seen = []

    def transfer(source, target, operation):
        seen.append((source, target, str(operation)))
        return 10.0

    first, last = play(lists, unit_duration, messages=MessageTimes(transfer))
    assert [s.start for s in first] == [0.0, 1.0, 24.0, 25.0, 26.0]
    assert [s.start for s in last] == [11.0, 12.0, 13.0, 14.0, 15.0]
    assert sorted(seen) == [(0, 1, "F0.0"), (0, 1, "F0.1"), (1, 0, "B0.0"), (1, 0, "B0.1")]


def test_updates_count_as_work_where_they_take_time():
    slices = played(GPipe(), 1, 1, 2, lambda _stage, _operation: 1.0)
    assert length(slices) == 6
    assert idle_shares(slices) == [0.0]


def test_playback_of_nothing_has_no_idle_time():
    assert idle_shares([[], []]) == [0.0, 0.0]


def test_deadlock_reports_what_ran_and_where_each_stage_is_stuck():
    lists = [[Operation.parse(word) for word in text.split()] for text in ("F0.0 B0.0 F0.1", "F0.0 F0.1 B0.0")]
    with pytest.raises(DeadlockError) as caught:
        play(lists, unit_duration)
    assert {r: str(op) for r, op in caught.value.stuck.items()} == {0: "B0.0", 1: "F0.1"}
    assert [len(row) for row in caught.value.played] == [1, 1]


@pytest.mark.parametrize("schedule", [GPipe(), OneFOneB(), PipelinedBackprop()])
def test_minibatch_times_add_up_with_fill_and_drain(schedule):
    rows = played(schedule, 4, 1, 6)
    times = step_times(rows)
    assert len(times) == 6
    assert sum(times) == length(rows)


@pytest.mark.parametrize(
    ("schedule", "D", "N", "M", "drawing"),
    [
        (
            Sequential(), 3, 1, 2,
            """
            stage 0  F0.0  .    .    .    .   B0.0 F1.0  .    .    .    .   B1.0
            stage 1   .   F0.0  .    .   B0.0  .    .   F1.0  .    .   B1.0
            stage 2   .    .   F0.0 B0.0  .    .    .    .   F1.0 B1.0
            """,
        ),
        (
            OneFOneBFlush(), 3, 3, 1,
            """
            stage 0  F0.0 F0.1 F0.2  .    .   B0.0  .   B0.1  .   B0.2
            stage 1   .   F0.0 F0.1  .   B0.0 F0.2 B0.1  .   B0.2
            stage 2   .    .   F0.0 B0.0 F0.1 B0.1 F0.2 B0.2
            """,
        ),
        (
            OneFOneB(), 3, 1, 4,
            """
            stage 0  F0.0 F1.0 F2.0  .    .   B0.0 F3.0 B1.0  .   B2.0  .   B3.0
            stage 1   .   F0.0 F1.0  .   B0.0 F2.0 B1.0 F3.0 B2.0  .   B3.0
            stage 2   .    .   F0.0 B0.0 F1.0 B1.0 F2.0 B2.0 F3.0 B3.0
            """,
        ),
        (
            NF1B(), 2, 2, 2,
            """
            stage 0  F0.0 F0.1 F1.0 F1.1  B0   .    .    B1
            stage 1   .   F0.0 F0.1  B0  F1.0 F1.1  B1
            """,
        ),
    ],
    ids=["sequential", "1f1b_flush", "1f1b", "nf1b"],
)  # fmt: skip
def test_grid_of_a_small_schedule_is_the_one_drawn_by_hand(schedule, D, N, M, drawing):
    drawn = grid([schedule.operations(r, D, N, M) for r in range(D)])
    assert drawn == dedent(drawing).strip("\n")


class Counted(list):
    """A list that counts how often an operation is taken from it."""

    taken = 0

    def __getitem__(self, index):
        self.taken += 1
        return super().__getitem__(index)


@pytest.mark.parametrize("stages", [8, 64])
@pytest.mark.parametrize("schedule", [OneFOneB(), GPipe()])
def test_each_operation_is_tried_once_or_twice_however_many_stages(schedule, stages):
    lists = [Counted(schedule.operations(r, stages, 2, 20)) for r in range(stages)]
    play(lists, unit_duration)
    assert sum(each.taken for each in lists) < 2 * sum(map(len, lists))
