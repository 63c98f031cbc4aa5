"""The last and the best metrics."""

from pipetrain.runner.tracking.evaluations import Evaluations, lower_is_better, reaches


def test_best_value_of_each_metric_has_its_own_step_and_epoch():
    made = Evaluations({})
    made.add(10, 1, {"loss": 2.0, "top1": 60.0})
    made.add(20, 2, {"loss": 1.0, "top1": 50.0})
    assert made.fields() == {
        "final": {"loss": 1.0, "top1": 50.0},
        "best": {"loss": 1.0, "top1": 60.0},
        "best_step": {"loss": 20, "top1": 10},
        "best_epoch": {"loss": 2, "top1": 1},
        "lower_is_better": ["loss"],
    }


def test_first_of_equal_best_values_counts_in_a_resumed_run_too():
    earlier = Evaluations({})
    for step in (10, 20):
        earlier.add(step, step // 10, {"loss": 1.0, "top1": 60.0})
    made = Evaluations(earlier.fields())
    made.add(30, 3, {"loss": 1.0, "top1": 50.0})
    assert (made.best, made.best_epoch) == ({"loss": 1.0, "top1": 60.0}, {"loss": 1, "top1": 1})
    assert made.best_step == {"loss": 10, "top1": 10}


def test_any_value_is_better_than_none_at_all():
    made = Evaluations({})
    for step, top1 in ((1, float("nan")), (2, 1.0), (3, float("nan"))):
        made.add(step, 1, {"top1": top1})
    assert (made.best, made.best_step) == ({"top1": 1.0}, {"top1": 2})


def test_falling_metric_is_best_at_lowest_even_if_resumed():
    earlier = Evaluations({}, ["rmse"])
    earlier.add(10, 1, {"loss": 1.0, "rmse": 2.0, "r2": 0.1})
    made = Evaluations(earlier.fields(), ["rmse"])
    made.add(20, 2, {"loss": 1.0, "rmse": 3.0, "r2": 0.2})
    assert made.best == {"loss": 1.0, "rmse": 2.0, "r2": 0.2}
    assert made.fields()["lower_is_better"] == ["loss", "rmse"]
    assert lower_is_better(made.fields()["lower_is_better"]) == {"loss", "perplexity", "rmse"}
    assert reaches(2.0, 2.5, lower=True)
    assert not reaches(2.0, 2.5, lower=False)
