"""Steady states against closed forms, and what stages hold against the schedules' own numbers."""

import pytest

from pipetrain.engine.program.pipeline_graph import SteadyPipeline
from pipetrain.engine.program.playback import Slice
from pipetrain.engine.program.steady_state import (
    SharedCores,
    between_updates,
    minibatches_held,
    peak_in_flight,
    peak_of_messages,
    steady_state,
)
from pipetrain.engine.program.times import StageTimes
from pipetrain.engine.schedules.gpipe import GPipe
from pipetrain.engine.schedules.nf1b import NF1B
from pipetrain.engine.schedules.one_f_one_b import OneFOneB, OneFOneBFlush
from pipetrain.engine.schedules.operation import Kind, Operation
from pipetrain.engine.schedules.pipelined_backprop import PipelinedBackprop
from pipetrain.engine.schedules.sequential import Sequential


def times(D, N, forward=1.0, backward=1.0, update=0.0, latency=0.0, transmission=0.0, inputs=0.0):
    forwards = forward if isinstance(forward, list) else [forward] * D
    backwards = backward if isinstance(backward, list) else [backward] * D
    links = [latency] * (D - 1), [transmission] * (D - 1)
    return StageTimes(forwards, forwards, backwards, [update] * D, N, *links, None, inputs)


def steady(schedule, D, N, cores=None, **given):
    cycles = [schedule.steady_cycle(r, D, N) for r in range(D)]
    return steady_state(SteadyPipeline(cycles, times(D, N, **given), [1] * D, [0.0] * D), cores)


@pytest.mark.parametrize(
    ("schedule", "hosts", "at_once", "period", "idle", "busy"),
    [
        (OneFOneB(), [0, 0, 0], 2, 3 * 3 / 2, 1 / 3, (1.0,)),
        (OneFOneB(), [0, 0, 0], 1.5, 3 * 3 / 1.5, 1 / 2, (1.0,)),
        (OneFOneB(), [0, 0, 0], 4, 3.0, 0.0, (3 / 4,)),
        (OneFOneB(), [0, 1, 0, 1], 1, 6.0, 1 / 2, (1.0, 1.0)),
        (GPipe(), [0, 0], 1, 6.0, 1 / 2, (1.0,)),  # one at a time anyway
    ],
)
def test_no_minibatch_is_faster_than_its_shared_core_compute(schedule, hosts, at_once, period, idle, busy):
    found = steady(schedule, len(hosts), 1, SharedCores(at_once, hosts), backward=2.0)
    assert found.period == pytest.approx(period)
    assert found.idle == pytest.approx([idle] * len(hosts))
    assert found.cores_busy == pytest.approx(busy)


def test_reading_of_data_takes_a_core_and_is_not_computing():
    found = steady(OneFOneB(), 2, 1, SharedCores(1, [0, 0]), backward=2.0, inputs=2.0)
    assert found.period == pytest.approx(3.0 + 3.0 + 2.0)
    assert found.cores_busy == pytest.approx((1.0,))
    assert (found.waiting[0], found.idle[0]) == pytest.approx((1 - 5 / 8, 1 - 3 / 8))


def test_replicas_gain_nothing_from_cores_that_they_share():
    piped = SteadyPipeline([OneFOneB().steady_cycle(0, 1, 1)], times(1, 1, backward=2.0), [3], [0.5])
    assert steady_state(piped).period == pytest.approx((3 + 0.5) / 3)
    assert steady_state(piped, SharedCores(1, [0, 0, 0])).period == pytest.approx(3.0)


@pytest.mark.parametrize(("D", "N"), [(1, 1), (2, 3), (4, 1), (4, 4)])
@pytest.mark.parametrize("schedule", [Sequential(), GPipe(), OneFOneB(), OneFOneBFlush(), NF1B(), PipelinedBackprop()])
def test_activations_in_flight_match_the_schedule(schedule, D, N):
    minibatches = 2 * minibatches_held(schedule, D, N) + 1
    peaks = [peak_in_flight(schedule.operations(r, D, N, minibatches), N) for r in range(D)]
    assert peaks == [schedule.in_flight(r, D, N) for r in range(D)]


def test_messages_of_a_link_are_as_many_as_its_backwards_and_its_replica_take():
    D, N = 4, 8
    lists = [NF1B().operations(r, D, N, 20) for r in range(D)]
    outputs = [peak_of_messages(operations, N, Kind.FORWARD) for operations in lists]
    gradients = [peak_of_messages(operations, N, Kind.BACKWARD) for operations in lists]
    assert outputs == [N * held for held in gradients] == [peak_in_flight(operations, N) for operations in lists]
    assert gradients == [4, 3, 2, 1]
    for kind in (Kind.FORWARD, Kind.BACKWARD):
        assert peak_of_messages(OneFOneB().operations(0, 3, 2, 20), 2, kind) == OneFOneB().in_flight(0, 3, 2)
        of_one_replica = [op for op in OneFOneB(depth=4).operations(0, 2, 1, 20) if op.minibatch % 4 == 0]
        assert peak_of_messages(of_one_replica, 1, kind) == 1


def test_steady_state_of_a_stage_lies_between_two_of_its_updates():
    words = [("F0.0", 1, 2), ("B0.0", 2, 4), ("U0", 4, 5), ("F1.0", 6, 7), ("B1.0", 7, 9), ("U1", 9, 10)]
    row = [Slice(Operation.parse(word), start, end) for word, start, end in words]
    assert between_updates(row, 1, 2) == pytest.approx((5, 1 / 5))
    assert between_updates(row, 0, 2) == pytest.approx((9, 1 / 9))
