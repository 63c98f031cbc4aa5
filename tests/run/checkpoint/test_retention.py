"""Checkpoints by their metrics, and which of them are kept."""

import json
import math

import pytest
from support.one_run import carried_out

from pipetrain.config.schema import CheckpointConfig
from pipetrain.run.checkpoint import store
from pipetrain.tracking.run_directory import RunDirectory

METRICS = {
    0: {},
    2: {"loss": 3.0, "top1": 10.0},
    4: {"loss": 1.0, "top1": 40.0},
    5: {},
    6: {"loss": math.nan, "top1": 40.0},
    8: {"loss": 2.0, "top1": 30.0},
    10: {"loss": 2.5, "top1": 20.0},
}


@pytest.fixture
def run(tmp_path):
    """A run with a checkpoint of every step of METRICS, some of them not evaluated."""
    made = RunDirectory(tmp_path)
    for step, metrics in METRICS.items():
        made.checkpoint(step).mkdir(parents=True)
        (made.checkpoint(step) / "progress.json").write_text(json.dumps({"step": step, "metrics": metrics}))
    return made


def test_best_checkpoint_by_falling_metric_is_the_lowest(run):
    for step, error in ((4, 3.0), (8, 1.0), (10, 2.0)):
        progress = {"step": step, "metrics": {"error": error}, "lower_is_better": ["error", "loss"]}
        (run.checkpoint(step) / "progress.json").write_text(json.dumps(progress))
    assert steps(store.best_first(store.checkpoints(run.path), "error")) == [8, 10, 4]


def steps(folders):
    return [store.step_of(folder) for folder in folders]


def kept(run, **settings):
    store.remove_expired(run, CheckpointConfig(**settings))
    return steps(store.checkpoints(run.path))


@pytest.mark.parametrize(("metric", "order"), [("loss", [4, 8, 10, 2]), ("top1", [4, 6, 8, 10, 2]), ("top9", [])])
def test_best_comes_first_and_what_was_not_evaluated_is_left_out(run, metric, order):
    assert steps(store.best_first(store.checkpoints(run.path), metric)) == order


def test_damaged_progress_takes_no_place(run):
    (run.checkpoint(4) / "progress.json").write_text("{")
    assert steps(store.best_first(store.checkpoints(run.path), "loss")) == [8, 10, 2]


@pytest.mark.parametrize(
    ("settings", "left"),
    [
        ({}, [0, 2, 4, 5, 6, 8, 10]),
        ({"keep_last": 1}, [0, 10]),
        ({"keep_last": 3}, [0, 6, 8, 10]),
        ({"keep_last": 9}, [0, 2, 4, 5, 6, 8, 10]),
        ({"keep_best": 1}, [0, 4, 10]),
        ({"keep_best": 2, "keep_last": 2}, [0, 4, 8, 10]),
        ({"keep_best": 2, "metric": "top1"}, [0, 4, 6, 10]),
    ],
)
def test_newest_best_and_requested_start_are_kept(run, settings, left):
    assert kept(run, **settings) == left
    assert steps(sorted(path for path in run.checkpoints.iterdir())) == left


def test_metrics_of_all_checkpoints_are_named(run):
    assert store.metrics_of(store.checkpoints(run.path)) == ["loss", "top1"]


def test_run_keeps_newest_and_best_and_saves_at_evaluations(tmp_path):
    settings = ["train.epochs=4", "checkpoint.every_epochs=0", "checkpoint.keep_best=1", "checkpoint.metric=top1"]
    assert carried_out(tmp_path / "run", *settings, "optimizer.lr=0.5") == 0
    run = RunDirectory(tmp_path / "run")
    best = json.loads(run.summary.read_text())["best_step"]["top1"]
    assert steps(store.checkpoints(run.path)) == sorted({best, 24})
    assert steps(store.best_first(store.checkpoints(run.path), "top1"))[0] == best
    assert all(store.problem(folder) is None for folder in run.checkpoints.iterdir())
