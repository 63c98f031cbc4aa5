"""The period of pipelines, found without playing them, against playback, hand-computed cases and closed forms."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipetrain.engine.executors.pipeline_rules import PipelineRules
from pipetrain.engine.methods.naive_async import NaiveAsync
from pipetrain.engine.methods.synchronous import Synchronous
from pipetrain.engine.program.event_graph import EventGraph
from pipetrain.engine.program.pipeline_graph import SteadyPipeline
from pipetrain.engine.program.playback import MessageTimes, play
from pipetrain.engine.program.recomputation import RecomputeSegments, steady_with_recomputation, with_recomputation
from pipetrain.engine.program.steady_state import minibatches_held, steady_state
from pipetrain.engine.program.times import StageTimes
from pipetrain.engine.schedules import Kind
from pipetrain.engine.schedules.gpipe import GPipe
from pipetrain.engine.schedules.interleaved import Interleaved1F1B, InterleavedContinuous1F1B
from pipetrain.engine.schedules.looped_bfs import LoopedBFS
from pipetrain.engine.schedules.nf1b import NF1B
from pipetrain.engine.schedules.one_f_one_b import OneFOneB, OneFOneB2BW, OneFOneBFlush
from pipetrain.engine.schedules.one_f_one_b_v import OneFOneBV
from pipetrain.engine.schedules.operation import Operation
from pipetrain.engine.schedules.pipelined_backprop import PipelinedBackprop, PipeMareSchedule
from pipetrain.engine.schedules.sequential import Sequential
from pipetrain.engine.schedules.zero_bubble import ZBH1, ZBV

SCHEDULES = [
    Sequential(), GPipe(), OneFOneBFlush(), OneFOneB(), OneFOneB(2), OneFOneB(4), PipelinedBackprop(),
    PipeMareSchedule(), NF1B(),
]  # fmt: skip

PLACED = [
    (Interleaved1F1B(), 4, 4), (Interleaved1F1B(3), 6, 2), (InterleavedContinuous1F1B(), 4, 2),
    (InterleavedContinuous1F1B(3), 9, 3), (LoopedBFS(), 4, 3), (LoopedBFS(2), 2, 2), (ZBV(), 4, 3), (ZBH1(), 3, 4),
    (OneFOneBV(), 4, 1), (OneFOneBV(), 6, 2), (OneFOneBV([3, 3, 2]), 4, 1),
]  # fmt: skip
"""Schedules that place several stages in a process or split backwards, with D and N."""


@pytest.mark.parametrize(
    ("schedule", "inputs", "targets", "expected"),
    [
        (GPipe(), 3.0, 0.0, 2 * 3.0),  # while the other stage computes
        (GPipe(), 6.0, 0.0, 1.0 + 6.0 + 2.0),
        (GPipe(), 0.0, 2.0, 2 * 3.0),
        (OneFOneB(), 1.5, 0.5, 3.0 + 1.5),
        (OneFOneB(), 0.5, 1.5, 3.0 + 1.5),
    ],
)
def test_end_stages_read_data_while_messages_are_under_way(schedule, inputs, targets, expected):
    took = replace(times(2, 1), inputs=inputs, targets=targets)
    assert period(schedule, took, 2, 1) == pytest.approx(expected)


def test_inputs_are_read_once_per_minibatch_by_each_replica():
    took = replace(times(1, 4, forward=0.25, backward=0.5), inputs=2.0)
    assert period(GPipe(), took, 1, 4) == pytest.approx(3.0 + 2.0)
    assert period(OneFOneB(), replace(times(1, 1), inputs=1.0), 1, 1, replicas=[2]) == pytest.approx(4.0 / 2)


def times(D, N, forward=1.0, backward=2.0, update=0.0, latency=0.0, transmission=0.0):
    return StageTimes(
        [forward] * D, [forward] * D, [backward] * D, [update] * D, N, [latency] * (D - 1), [transmission] * (D - 1)
    )


def period(schedule, took, D, N, segments=None, replicas=None, **averaging):
    cycles = [schedule.steady_cycle(r, D, N) for r in range(D)]
    if segments is not None:
        cycles = [steady_with_recomputation(cycle, segments.lead(r)) for r, cycle in enumerate(cycles)]
    pipeline = SteadyPipeline(
        cycles, took, replicas or [1] * D, segments=segments, **{"averaging": [0.0] * D, **averaging}
    )
    return steady_state(pipeline).period


@pytest.mark.parametrize(
    ("schedule", "replicas", "forward", "backward"),
    [
        (GPipe(), [2, 1], [3.0, 3.0], [4.0, 3.0]),
        (GPipe(), [3, 1], [1.0, 1.0], [5.0, 2.0]),
        (OneFOneB(), [2, 1, 1], [1.0, 3.0, 1.0], [6.0, 1.0, 1.0]),
        (OneFOneB(), [1, 2], [1.0, 4.0], [2.0, 3.0]),
    ],
)
def test_average_that_takes_no_time_costs_nothing_by_overlapping(schedule, replicas, forward, backward):
    D = len(replicas)
    took = replace(times(D, 1), forward=forward, backward=backward)
    periods = [period(schedule, took, D, 1, replicas=replicas, overlapped=overlapped) for overlapped in (False, True)]
    assert periods[0] == pytest.approx(periods[1])


def played_period(schedule, took, D, N, segments=None, turns=60):
    """On average over 60 minibatches long after the start, which hold every small period whole."""
    first = 20 + 3 * minibatches_held(schedule, D, N)
    minibatches = first + turns + 2 * minibatches_held(schedule, D, N) + 2
    lists = [schedule.operations(r, D, N, minibatches) for r in range(D)]
    if segments is not None:
        lists = [with_recomputation(operations, segments.lead(r)) for r, operations in enumerate(lists)]
    rows = play(lists, took.duration, segments, MessageTimes(took.transfer, took.occupation))
    ends = [piece.end for piece in rows[-1] if piece.operation.kind is Kind.UPDATE]
    return (ends[first + turns] - ends[first]) / turns


@pytest.mark.parametrize(("D", "N"), [(1, 1), (1, 3), (3, 1), (4, 2), (3, 5)])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_steady_cycle_is_what_the_list_repeats(schedule, D, N):
    for r in range(D):
        cycle = schedule.steady_cycle(r, D, N)
        held = minibatches_held(schedule, D, N)
        operations = schedule.operations(r, D, N, 2 * held + 6)
        begin = operations.index(Operation.parse(f"U{held}")) + 1
        assert operations[begin : begin + 2 * len(cycle)] == [op.moved(held + t) for t in (1, 2) for op in cycle]


@pytest.mark.parametrize(("schedule", "N"), [(GPipe(), 3), (PipelinedBackprop(), 1), (PipeMareSchedule(), 2)])
@pytest.mark.parametrize("firsts", [(0, 1, 2, 3), (0, 2), (0,)])
def test_recomputing_steady_cycle_matches_its_list(schedule, N, firsts):
    segments = RecomputeSegments(firsts, 4)
    for r in range(4):
        cycle = steady_with_recomputation(schedule.steady_cycle(r, 4, N), segments.lead(r))
        operations = with_recomputation(schedule.operations(r, 4, N, 40), segments.lead(r))
        begin = operations.index(Operation.parse("U15")) + 1
        assert operations[begin : begin + 2 * len(cycle)] == [op.moved(t) for t in (16, 17) for op in cycle]


@settings(max_examples=15)
@given(st.data())
def test_period_is_that_of_the_operation_lists_played_for_long(data):
    D, N = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 3))
    schedule = data.draw(st.sampled_from(SCHEDULES))
    draw = lambda least, count: [float(data.draw(st.integers(least, 4))) for _ in range(count)]  # noqa: E731
    took = StageTimes(draw(1, D), draw(0, D), draw(1, D), draw(0, D), N, draw(0, D - 1), draw(0, D - 1))
    assert period(schedule, took, D, N) == pytest.approx(played_period(schedule, took, D, N), rel=1e-9)


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_period_of_processes_with_several_stages_is_that_of_their_lists_played_for_long(data):
    schedule, D, N = data.draw(st.sampled_from(PLACED))
    draw = lambda least, count: [float(data.draw(st.integers(least, 4))) for _ in range(count)]  # noqa: E731
    took = StageTimes(
        draw(1, D), draw(0, D), draw(1, D), draw(0, D), N, draw(0, D - 1), draw(0, D - 1), weight_gradient=draw(1, D)
    ).within(schedule.placement(D))
    rules = PipelineRules(schedule, Synchronous() if schedule.synchronous else NaiveAsync(), D, N)
    cycles = [rules.steady_cycle(r) for r in range(D)]
    steady = steady_state(SteadyPipeline(cycles, took, [1] * D, [0.0] * D, orders=rules.steady_orders()))
    first, turns = 40, 60
    messages = MessageTimes(took.transfer, took.occupation)
    rows = play(rules.lists(120), took.duration, messages=messages, orders=rules.orders(120))
    ends = [piece.end for piece in rows[-1] if piece.operation.kind is Kind.UPDATE]
    assert steady.period == pytest.approx((ends[first + turns] - ends[first]) / turns, rel=1e-9)
    busy = [sum(took.duration(r, op) for op in cycle) / steady.period for r, cycle in enumerate(cycles)]
    assert steady.idle == pytest.approx([1 - each for each in schedule.placement(D).sums(busy)])


@pytest.mark.parametrize("firsts", [(0, 1, 2), (0,)])
def test_period_with_recomputation_is_that_of_the_lists(firsts):
    segments, took = RecomputeSegments(firsts, 3), times(3, 2, update=0.5, latency=0.25, transmission=0.5)
    expected = played_period(PipeMareSchedule(), took, 3, 2, segments)
    assert period(PipeMareSchedule(), took, 3, 2, segments=segments) == pytest.approx(expected, rel=1e-9)


def test_slow_link_carries_one_message_at_a_time():
    """Of 10 s each, both directions side by side; two microbatches in flight come back after 1 + 10 + 3 + 10 + 2."""
    assert period(OneFOneB2BW(), times(2, 4, transmission=10.0), 2, 4) == pytest.approx(4 * 26 / 2)
    assert period(PipeMareSchedule(), times(2, 4, transmission=10.0), 2, 4) == pytest.approx(4 * 10)
    slow = times(2, 4, latency=10.0)
    assert period(PipeMareSchedule(), slow, 2, 4) < 4 * 10


def test_replicas_divide_stage_time_and_wait_for_average():
    took = times(1, 1)
    assert period(OneFOneB(), took, 1, 1, replicas=[4]) == pytest.approx(3 / 4)
    assert period(OneFOneB(), took, 1, 1, replicas=[4], averaging=[2.0]) == pytest.approx((3 + 2) / 4)
    assert period(OneFOneB(), took, 1, 1, replicas=[4], averaging=[2.5], overlapped=True) == pytest.approx(
        (1 + 2.5) / 4
    )


def test_updates_wait_for_gradients_of_tied_weights():
    took = times(2, 2)
    assert period(GPipe(), took, 2, 2, ties=[((0, 1), 5.0)]) == pytest.approx(period(GPipe(), took, 2, 2) + 5)
    assert period(GPipe(), took, 2, 2, ties=[((0, 1), 3.0), ((0, 1), 2.0)]) == pytest.approx(
        period(GPipe(), took, 2, 2) + 5
    )


def test_updates_wait_for_the_backwards_of_all_stages_that_share_a_weight():
    """Stage 1 updates 5 s after the backward of stage 0, and not 5 s after its own, 2 s earlier."""
    took = StageTimes([1.0, 1.0], [0.0, 0.0], [2.0, 2.0], [0.0, 4.0], 1, [0.0], [0.0])
    assert period(GPipe(), took, 2, 1, ties=[((0, 1), 5.0)]) == pytest.approx(1 + 2 + 2 + 5 + 4)


def test_nondividing_replicas_take_minibatches_in_turn():
    """Three and two devices, each twice and three times as fast together: 1 s a minibatch."""
    took = StageTimes([1.0, 0.5], [0, 0], [2.0, 1.5], [0, 0], 1, [0.0], [0.0])
    deep = [[Operation.parse(word) for word in text.split()] for text in ("F4.0 B0.0 U0", "F3.0 B0.0 U0")]
    pipeline = SteadyPipeline(deep, took, [3, 2], [0.0, 0.0])
    found = steady_state(pipeline)
    assert pipeline.turn == 6
    assert found.period == pytest.approx(1.0)
    assert found.idle == pytest.approx([0.0, 0.0])


@pytest.mark.slow
@pytest.mark.parametrize(("schedule", "N"), [(OneFOneB(), 1), (OneFOneBFlush(), 4)])
def test_work_grows_with_the_stages_up_to_ten_thousand(schedule, N, monkeypatch):
    """Policy iteration looks at every edge once in a round: few edges for each stage, and few rounds at any depth."""
    rounds = []
    improved = EventGraph._improved
    monkeypatch.setattr(EventGraph, "_improved", lambda self, *rest: rounds.append(self) or improved(self, *rest))
    for D in (100, 10_000):
        rounds.clear()
        took = StageTimes(
            [1 + r % 7 / 7 for r in range(D)], [0.0] * D, [2 + r % 5 / 5 for r in range(D)], [0.0] * D, N,
            [0.01] * D, [0.3 + r % 3 / 9 for r in range(D)],
        )  # fmt: skip
        slowest = max(N * (f + b) for f, b in zip(took.forward, took.backward, strict=True))
        assert period(schedule, took, D, N) >= slowest
        assert len(rounds) <= 8
        assert len(rounds[0].sources) <= 9 * N * D
