"""The last and the best metrics."""

from pipetrain.tracking.evaluations import Evaluations, better


def test_best_value_of_each_metric_has_its_own_step_and_epoch():
    made = Evaluations({})
    made.add(10, 1, {"loss": 2.0, "top1": 60.0})
    made.add(20, 2, {"loss": 1.0, "top1": 50.0})
    assert made.fields() == {
        "final": {"loss": 1.0, "top1": 50.0},
        "best": {"loss": 1.0, "top1": 60.0},
        "best_step": {"loss": 20, "top1": 10},
        "best_epoch": {"loss": 2, "top1": 1},
    }


def test_resumed_run_knows_the_best_of_its_earlier_part():
    earlier = Evaluations({})
    earlier.add(10, 1, {"top1": 60.0})
    made = Evaluations(earlier.fields())
    made.add(20, 2, {"top1": 50.0})
    assert (made.best, made.best_step) == ({"top1": 60.0}, {"top1": 10})


def test_any_value_is_better_than_none_at_all():
    assert better("top1", 1.0, float("nan"))
    assert not better("loss", float("nan"), 1.0)
