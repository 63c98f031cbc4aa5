"""What the figure of a predicted pipeline draws."""

import pytest

from pipetrain.planning.costs.prediction import PredictedStage, Prediction
from pipetrain.planning.tables.prediction_figure import draw, parts_of
from pipetrain.planning.tables.prediction_tables import Case


def stage(replicas, waiting, *seconds):
    return PredictedStage(("a", "b"), 2, replicas, *seconds, idle=waiting, waiting=waiting, memory_bytes=None)


def test_parts_of_a_minibatch_are_those_that_take_time():
    stages = (stage(1, 0.0, 1.0, 1.0, 2.0, 0.0, 0.0), stage(2, 0.5, 2.0, 2.0, 3.0, 0.0, 1.0))
    alone = Prediction(stages, 5.0, None, (0.0,), 0.0)
    shown = {name: milliseconds for name, _, milliseconds in parts_of(alone, 2)}
    assert shown == {
        "forward": [1000, 1000],
        "recomputation": [1000, 1000],
        "backward": [2000, 1500],
        "data": [0, 500],
    }


@pytest.mark.slow
@pytest.mark.parametrize(("count", "line"), [(60, None), (61, "a.png shows the first 60 of 61 pipelines")])
def test_figure_says_how_many_of_many_pipelines_it_shows(tmp_path, count, line):
    alone = Prediction((stage(1, 0.0, 1.0, 1.0, 2.0, 0.0, 0.0),), 5.0, None, (), 0.0)
    assert draw(tmp_path / "a.png", [Case({"D": str(number)}, alone) for number in range(count)]) == line
