"""What the figure of a predicted pipeline draws."""

from dataclasses import replace

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


def test_process_with_several_stages_has_one_bar():
    of_four = [stage(1, 0.0, 1.0, 0.0, 2.0, 0.0, 0.0) for _ in range(4)]
    stages = tuple(replace(each, process=r % 2, weight_gradient_s=1.0 + r) for r, each in enumerate(of_four))
    several = Prediction(stages, 5.0, None, (0.0,) * 3, 0.0, several=True)
    shown = {name: milliseconds for name, _, milliseconds in parts_of(several, 60)}
    assert shown == {"forward": [2000] * 2, "backward": [4000] * 2, "weight gradient": [4000, 6000]}


@pytest.mark.slow
@pytest.mark.parametrize(("count", "line"), [(60, None), (61, "a.png shows the first 60 of 61 pipelines")])
def test_figure_says_how_many_of_many_pipelines_it_shows(tmp_path, count, line):
    alone = Prediction((stage(1, 0.0, 1.0, 1.0, 2.0, 0.0, 0.0),), 5.0, None, (), 0.0)
    assert draw(tmp_path / "a.png", [Case({"D": str(number)}, alone) for number in range(count)]) == line
