"""Checkpoints of a run, evaluated in this process."""

import json
from dataclasses import replace

import pytest
import torch
from support.refusals import assert_refused
from support.worker_pool import job, plan_of, simulated
from torch import nn

from pipetrain.runner.tracking.stored_settings import parse_overrides
from pipetrain.runner.training.checkpoint import contents, store
from pipetrain.runner.training.checkpoint.store import Selection
from pipetrain.runner.training.finished.evaluate import evaluate


@pytest.fixture
def run(tmp_path):
    """A run of twelve steps with the settings that the command stores, and its summary."""
    made = job(tmp_path / "run", "pipedream", 2, checkpoint={"every_epochs": 1})
    summary = simulated(made)
    made.run.config.write_text(json.dumps(made.settings.stored))
    return made.run.path, summary


def evaluated(path, *overrides, trust=True, **selection):
    return evaluate(Selection(path, **selection), parse_overrides(overrides), trust=trust)


def test_evaluation_of_a_stored_run_is_that_of_the_run_itself(run):
    path, summary = run
    newest = evaluated(path, "device=cpu")
    assert newest.metrics == pytest.approx(summary["final"], rel=1e-6)
    assert (newest.step, newest.model, newest.samples) == (12, "support.small_model.build", 10)
    assert evaluated(path, "device=cpu", step=6).step == 6


def test_evaluation_takes_other_data_and_refuses_unread_settings(run):
    path, _ = run
    assert evaluated(path, "dataset.eval=6").samples == 6
    assert evaluated(path, "dataset.limit=2", "dataset.train=2").samples == 2  # fewer than a minibatch of training
    assert_refused(r"dataset.evil=6", evaluated, path, "dataset.evil=6")
    assert_refused(r"limit=3: no such setting; did you mean dataset.limit", evaluated, path, "limit=3")
    assert_refused(r"train.epochs=3: not read by an evaluation", evaluated, path, "train.epochs=3")


def test_evaluation_on_named_dataset_takes_its_section(run):
    path, _ = run
    sizes = ["dataset.channels=1", "dataset.size=8", "dataset.classes=4", "dataset.eval=8"]
    found = evaluated(path, "dataset=synthetic_images", *sizes)
    assert (found.dataset, found.samples) == ("synthetic_images", 8)


def test_model_of_the_users_own_is_not_called_without_trust(run, monkeypatch):
    path, _ = run
    monkeypatch.setattr("support.small_model.build", lambda **_: pytest.fail("called"))
    assert_refused(r"support.small_model.build is not .*--trust", evaluated, path, trust=False)


def test_weights_of_another_shape_are_refused_by_name(run):
    path, _ = run
    assert_refused(r"another model; 0.weight .*\(6, 1, 3, 3\)", evaluated, path, "dataset.channels=3")


def tied():
    """A model whose last layer has the weight of the one before."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.Linear(64, 64))
    model[2].weight = model[1].weight
    return model


def test_tied_weights_are_evaluated_under_all_their_names(tmp_path, monkeypatch):
    monkeypatch.setattr("support.small_model.tied", tied, raising=False)
    made = job(tmp_path / "run", "gpipe", 1, model={"_target_": "support.small_model.tied"})
    summary = simulated(replace(made, plan=plan_of([(0, 3)])))
    made.run.config.write_text(json.dumps(made.settings.stored))
    assert evaluated(made.run.path).metrics == pytest.approx(summary["final"], rel=1e-6)
    state = contents.named_state(store.newest_undamaged(str(made.run.path)))
    assert torch.equal(state["2.weight"], state["1.weight"])
