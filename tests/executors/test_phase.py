"""A schedule and a method that go together, and room for recomputation."""

import math

import pytest

from pipetrain.errors import ConfigError
from pipetrain.executors.phase import Phase, PipelineRules
from pipetrain.methods.naive_async import NaiveAsync
from pipetrain.methods.synchronous import Synchronous
from pipetrain.methods.timeprest import TiMePReSt
from pipetrain.program.recomputation import RecomputeSegments
from pipetrain.schedules.gpipe import GPipe
from pipetrain.schedules.nf1b import NF1B
from pipetrain.schedules.one_f_one_b import OneFOneB
from pipetrain.schedules.pipelined_backprop import PipeMareSchedule


@pytest.mark.parametrize(
    ("schedule", "rooms"),
    [
        (GPipe(), [math.inf] * 3),
        (OneFOneB(), [2, 1, 0]),
        (PipeMareSchedule(), [5, 3, 1]),
        (NF1B(), [0, 0, 0]),
    ],
)
def test_schedule_leaves_room_for_early_recomputation_by_what_it_has_in_flight(schedule, rooms):
    assert [schedule.recompute_room(r, 3, 2) for r in range(3)] == rooms


@pytest.mark.parametrize(("schedule", "method"), [(OneFOneB(), NaiveAsync()), (NF1B(), TiMePReSt())])
def test_segments_that_start_earlier_than_the_schedule_allows_are_refused(schedule, method):
    with pytest.raises(ConfigError, match=r"train\.recompute_boundaries: stage \d would start recomputing"):
        PipelineRules(schedule, method, 4, 1, RecomputeSegments((0,), 4))


@pytest.mark.parametrize(("schedule", "method"), [(GPipe(), Synchronous()), (PipeMareSchedule(), NaiveAsync())])
def test_segments_with_room_enough_are_planned(schedule, method):
    rules = PipelineRules(schedule, method, 4, 1, RecomputeSegments((0,), 4))
    assert any(str(planned.operation) == "R0.0" for planned in rules.planned(0, 2))


def test_phase_without_bounds_is_the_whole_run():
    phase = Phase(PipelineRules(GPipe(), Synchronous(), 2, 1))
    assert phase.start == 0
    assert phase.end > 10**9
