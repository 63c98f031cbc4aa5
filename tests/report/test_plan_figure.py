"""What the figure of a plan draws."""

import pytest

from pipetrain.planner.pipeline_plan import PipelinePlan, PlannedStage
from pipetrain.planner.profile import Profile
from pipetrain.planner.topology import Device, Topology
from pipetrain.report.plan_figure import rooms_of
from pipetrain.report.plan_table import ComparedPlan, Comparison


@pytest.mark.parametrize(("memory", "rooms"), [((16.0, 8.0, 4.0), [8.0, 4.0]), ((16.0, None, 4.0), [16.0, 4.0])])
def test_each_stage_has_the_room_of_its_smallest_device(memory, rooms):
    plan = PipelinePlan((PlannedStage((0,), 2, 1.0, 1), PlannedStage((1,), 1, 1.0, 1)), 1.0, 2.0, 1.0)
    topology = Topology((3,), (1.0,), tuple(Device(memory_bytes=each) for each in memory))
    compared = Comparison(Profile((), ()), topology, [ComparedPlan("best", plan, fits=True)], 8)
    assert rooms_of(compared) == rooms
