"""Checkpoints of a run, evaluated and exported in this process."""

import json

import pytest
from support.worker_pool import job, simulated

from pipetrain.errors import ConfigError
from pipetrain.run.evaluate import evaluate


@pytest.fixture
def run(tmp_path):
    """A run of twelve steps with the settings that the command stores, and its summary."""
    made = job(tmp_path / "run", "pipedream", 2, checkpoint={"every_epochs": 1})
    summary = simulated(made)
    made.run.config.write_text(json.dumps(made.settings.stored))
    return made.run.path, summary


def test_evaluation_of_a_stored_run_is_that_of_the_run_itself(run, capsys):
    path, summary = run
    evaluate(path, None, ["device=cpu"])
    assert json.loads(capsys.readouterr().out) == pytest.approx({"step": 12, **summary["final"]}, rel=1e-6)
    evaluate(path, 6, ["device=cpu"])
    assert json.loads(capsys.readouterr().out)["step"] == 6


def test_evaluation_takes_other_data_and_refuses_other_settings(run, capsys):
    path, _ = run
    evaluate(path, None, ["dataset.eval=6"])
    assert json.loads(capsys.readouterr().out)["step"] == 12
    with pytest.raises(ConfigError, match=r"dataset.evil=6"):
        evaluate(path, None, ["dataset.evil=6"])
