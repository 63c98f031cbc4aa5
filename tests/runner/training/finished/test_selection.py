"""The checkpoint that a command is about."""

import json

import pytest
import torch
from support.checkpoints import written
from support.refusals import assert_refused

from pipetrain.engine.errors import ConfigError
from pipetrain.runner.config.composition import composed
from pipetrain.runner.tracking.run_directory import RunDirectory
from pipetrain.runner.training.checkpoint.store import Selection


@pytest.fixture
def run(tmp_path):
    made = RunDirectory(tmp_path / "run")
    for step, metrics in ((2, {"loss": 1.0, "top1": 20.0}), (4, {"loss": 2.0, "top1": 30.0}), (6, {})):
        written(made.path, step, {"model.a": torch.ones(1)}, metrics=metrics)
    made.config.write_text(json.dumps(composed(["checkpoint.metric=top1"]).stored))
    return made


def test_newest_that_of_a_step_and_the_best_are_found(run):
    assert Selection(run.path).checkpoint() == run.checkpoint(6)
    assert Selection(run.path, step=2).checkpoint() == run.checkpoint(2)
    assert Selection(run.path, best=True).checkpoint() == run.checkpoint(4)
    assert Selection(run.path, best=True, metric="loss").checkpoint() == run.checkpoint(2)


def test_checkpoint_by_its_own_path_belongs_to_its_run(run):
    selection = Selection(run.checkpoint(4))
    assert selection.checkpoint() == run.checkpoint(4)
    assert selection.run.path == run.path


def test_checkpoint_outside_its_run_takes_the_settings_of_no_other(run):
    other = RunDirectory(run.path.with_name("other"))
    (other.path / "kept").mkdir(parents=True)
    other.config.write_text("{}")
    moved = run.checkpoint(4).rename(other.path / "kept" / run.checkpoint(4).name)
    assert Selection(moved).checkpoint() == moved
    with pytest.raises(ConfigError, match=r"step-00000004: is not in the folder checkpoints of a run directory"):
        _ = Selection(moved).run


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"best": True, "metric": "top9"}, "--best: no checkpoint of .* was evaluated by top9; .*: loss, top1"),
        ({"metric": "loss"}, "--metric loss: requires --best"),
        ({"step": 3}, "--step 3: .*: 2, 4, 6"),
    ],
)
def test_what_is_not_there_is_refused_with_what_is(run, words, message):
    assert_refused(message, lambda: Selection(run.path, **words).checkpoint())


@pytest.mark.parametrize(("words", "flag"), [({"step": 2}, "--step 2"), ({"best": True}, "--best")])
def test_checkpoint_by_its_own_path_takes_no_other_choice(run, words, flag):
    assert_refused(f"{flag}: this is a checkpoint", lambda: Selection(run.checkpoint(4), **words).checkpoint())


def test_damaged_best_is_refused(run):
    (run.checkpoint(4) / "process-0.safetensors").write_bytes(b"")
    assert_refused(r"process-0\.safetensors: damaged", lambda: Selection(run.path, best=True).checkpoint())
