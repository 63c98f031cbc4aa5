"""What the figure of a plan draws."""

import pytest
from PIL import Image

from pipetrain.planner.costs.topology import Device, Topology
from pipetrain.planner.pipeline_plan import PipelinePlan, PlannedStage
from pipetrain.planner.profile.profile import Profile, ProfiledLayer
from pipetrain.report.planning.plan_comparison import ComparedPlan, Comparison, draw_comparison, rooms_of

PROFILE = Profile(tuple(ProfiledLayer(label, 1.0, 1.0, 4, 8, 16) for label in "ab"), ((0, 1),), 8)


@pytest.mark.parametrize(("memory", "rooms"), [((16.0, 8.0, 4.0), [8.0, 4.0]), ((16.0, None, 4.0), [16.0, 4.0])])
def test_each_stage_has_the_room_of_its_smallest_device(memory, rooms):
    plan = PipelinePlan((PlannedStage((0,), 2, 1.0, 1), PlannedStage((1,), 1, 1.0, 1)), 1.0, 2.0, 1.0)
    topology = Topology((3,), (1.0,), tuple(Device(memory_bytes=each) for each in memory))
    compared = Comparison(Profile((), ()), topology, [ComparedPlan("best", plan, fits=True)], 8)
    assert rooms_of(compared) == rooms


def test_stages_are_compared_only_where_there_are_several(tmp_path):
    def width(stages):
        layers = ((0, 1),) if stages == 1 else ((0,), (1,))
        plan = PipelinePlan(tuple(PlannedStage(each, 1, 1.0, 1) for each in layers), 1.0, 2.0, 1.0, labels=("a", "b"))
        path = tmp_path / f"{stages}.png"
        draw_comparison(
            path, Comparison(PROFILE, Topology((stages,), (1.0,)), [ComparedPlan("best", plan, fits=True)], 8)
        )
        return Image.open(path).width

    assert width(1) < 0.6 * width(2)
