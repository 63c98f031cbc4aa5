"""Early stopping: when the count ends a run, and runs that end so."""

import math

import pytest
from support.cli import summary
from support.equal_bits import assert_same, both_ways
from support.one_run import carried_out
from support.worker_pool import job, settings, simulated

from pipetrain.engine.errors import ExitCode
from pipetrain.runner.training.checkpoint import store
from pipetrain.runner.training.early_stopping import EarlyStopping


def counted(values, metric="top1", patience=3, least=0.0, lower=()):
    """The count after evaluations with these values."""
    stopping = EarlyStopping(metric, patience, least)
    for epoch, value in enumerate(values, start=1):
        stopping.add({metric: value, "other": 0.0}, epoch, lower)
    return stopping


@pytest.mark.parametrize(
    ("values", "options", "best", "epoch", "evaluations"),
    [
        ([1, 2, 3], {}, 3, 3, 0),
        ([3, 2, 3, 1], {}, 3, 1, 3),
        ([3, 2, 1, 2], {"metric": "loss", "lower": ("loss",)}, 1, 3, 1),
        ([1, 1.5, 2, 2.0], {"least": 1.0}, 1, 1, 3),  # only more than the least counts, from the last that counted
        ([1, 1.5, 2.5, 3], {"least": 1.0}, 2.5, 3, 1),
        ([math.nan, math.inf, 1, math.nan], {}, 1, 3, 1),
        ([math.nan, math.nan], {}, None, 0, 2),
    ],
)
def test_evaluations_without_improvement_are_counted(values, options, best, epoch, evaluations):
    found = counted(values, **options)
    assert (found.best, found.epoch, found.evaluations) == (best, epoch, evaluations)
    assert found.ended is (evaluations >= 3)


def test_evaluation_without_the_metric_does_not_count():
    stopping = counted([1, 1])
    stopping.add({"other": 1.0}, 3, ())
    assert stopping.evaluations == 1


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        (counted([50, 71.234, 1, 2, 3]), "no better top1 for 3 evaluations; best 71.23 after epoch 2"),
        (counted([2, 1], patience=1), "no better top1 for 1 evaluation; best 2 after epoch 1"),
        (
            counted([2, 3], patience=1, least=5),
            "no better top1 by more than 5 for 1 evaluation; last improved to 2 after",
        ),
        (counted([math.nan], patience=1), "no better top1 for 1 evaluation; none was finite"),
    ],
)
def test_reason_names_metric_number_and_best(found, reason):
    assert found.reason.startswith(f"stopped early: {reason}")


def test_count_continues_unless_the_metric_is_another():
    fields = counted([5, 4]).fields()
    for metric, evaluations in (("top1", 1), ("loss", 0)):
        stopping = EarlyStopping(metric, 3)
        stopping.continue_from(fields)
        assert (stopping.evaluations, stopping.best) == (evaluations, 5 if evaluations else None)


def test_settings_without_patience_have_no_early_stopping():
    assert EarlyStopping.of(settings("gpipe").train, "loss") is None
    made = EarlyStopping.of(settings("gpipe", train={"patience": 2, "min_improvement": 0.5}).train, "top1")
    assert (made.metric, made.patience, made.min_improvement) == ("top1", 2, 0.5)


NEVER_BETTER = {"train": {"epochs": 9, "patience": 2, "min_improvement": 1e6}}
"""The second evaluation after the first one ends the run, after epoch 3 of six steps each."""


def test_runs_end_early_alike_in_both_executors(tmp_path):
    changes = {**NEVER_BETTER, "checkpoint": {"keep_best": 1, "every_epochs": 0}}
    ((ours, theirs),) = both_ways([job(tmp_path / "run", "pipeoptim", 2, **changes)])
    for found in (ours, theirs):
        assert (found["status"], found["steps"]) == ("completed", 18)
        assert found["reason"].startswith("stopped early: no better loss by more than 1e+06 for 2 evaluations")
        assert (found["early_stopping"]["epoch"], found["early_stopping"]["evaluations"]) == (1, 2)
    assert (ours["reason"], ours["early_stopping"]) == (theirs["reason"], theirs["early_stopping"])
    best = store.best_first(store.checkpoints(tmp_path / "run" / "simulated"), "loss")[0]
    assert store.step_of(best) == theirs["best_step"]["loss"]


def test_resumed_run_counts_on_and_ends_where_the_whole_one_does(tmp_path):
    changes = {**NEVER_BETTER, "checkpoint": {"every_steps": 8}}
    whole = simulated(job(tmp_path / "whole", "pipedream", 2, **changes))
    for k, half in enumerate(store.checkpoints(tmp_path / "whole")[:-1]):
        again = simulated(job(tmp_path / f"again{k}", "pipedream", 2, resume=half, **changes))
        assert_same(again, whole)
        assert (again["reason"], again["early_stopping"]) == (whole["reason"], whole["early_stopping"])


@pytest.mark.slow
def test_run_with_more_patience_continues_one_that_stopped(tmp_path, capsys):
    words = ("train.epochs=9", "train.patience=2", "train.min_improvement=1e6")
    assert carried_out(tmp_path / "first", *words) is ExitCode.COMPLETED
    assert "stopped early: no better loss" in capsys.readouterr().out
    assert summary(tmp_path / "first")["steps"] == 18
    resumed = f"resume={tmp_path / 'first'}"
    assert carried_out(tmp_path / "same", resumed, *words) is ExitCode.WRONG_USAGE
    assert "raise train.patience" in capsys.readouterr().err
    assert carried_out(tmp_path / "more", resumed, *words, "train.patience=3") is ExitCode.COMPLETED
    assert summary(tmp_path / "more")["steps"] == 24
    assert carried_out(tmp_path / "without", resumed, "train.epochs=5") is ExitCode.COMPLETED
    assert summary(tmp_path / "without")["steps"] == 30
    assert "reason" not in summary(tmp_path / "without")


def test_last_step_of_a_run_is_no_early_stop(tmp_path):
    changes = {"train": {**NEVER_BETTER["train"], "epochs": 3}}
    found = simulated(job(tmp_path, "gpipe", 2, **changes))
    assert found["steps"] == 18
    assert "reason" not in found
