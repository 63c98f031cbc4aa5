"""What the figure of a plan draws."""

from PIL import Image

from pipetrain.planning.costs.topology import Topology
from pipetrain.planning.pipeline_plan import PipelinePlan, PlannedStage
from pipetrain.planning.profile.profile import Profile, ProfiledLayer
from pipetrain.planning.tables.plan_comparison import ComparedPlan, Comparison, draw_comparison

PROFILE = Profile(tuple(ProfiledLayer(label, 1.0, 1.0, 4, 8, 16) for label in "ab"), ((0, 1),), 8)


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
