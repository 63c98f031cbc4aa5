"""One run as the command line sees it, in this process."""

import json
import os
import signal

import pytest
from omegaconf import OmegaConf
from support.methods import MethodCase
from support.worker_pool import CONFIG

from pipetrain.commands.run.one_run import run
from pipetrain.errors import ExitCode
from pipetrain.tracking import summary
from pipetrain.tracking.run_directory import RunDirectory
from pipetrain.tracking.run_lock import locked

CHOICES = {"method": "pipedream", "schedule": "1f1b", "model": "small", "dataset": "synthetic_images"}
HYDRA = OmegaConf.create({"overrides": {"task": ["method=pipedream", "seed=3"]}, "runtime": {"choices": CHOICES}})


def carried_out(folder, *overrides):
    base = OmegaConf.create({**CONFIG, **MethodCase.named("pipedream").sections(), "executor": {"name": "simulated"}})
    base.partition = {"_target_": "pipetrain.planner.partition_rules.Even", "stages": 2}
    config = OmegaConf.merge(base, {"device": "cpu"}, OmegaConf.from_dotlist(list(overrides)))
    return run(config, CHOICES, folder, HYDRA)


def test_completed_run_shows_its_plan_and_its_summary_and_leaves_its_settings(tmp_path, capsys):
    assert carried_out(tmp_path / "run", "train.epochs=1") is ExitCode.COMPLETED
    out, _ = capsys.readouterr()
    assert out.startswith("stage  layers")
    assert f"writing to {tmp_path / 'run'}" in out
    assert "completed after 6 steps" in out
    directory = RunDirectory(tmp_path / "run")
    assert directory.stored_settings().train.epochs == 1
    assert OmegaConf.load(directory.hydra / "overrides.yaml") == ["method=pipedream", "seed=3"]
    assert len(json.loads(directory.plan.read_text())["stages"]) == 2
    assert summary.read(directory)["steps"] == 6


def test_refused_run_is_one_line_and_leaves_nothing(tmp_path, capsys):
    assert carried_out(tmp_path / "run", "train.epochs=0") is ExitCode.WRONG_USAGE
    assert capsys.readouterr() == ("", "pipetrain: error: train.epochs=0: at least 1\n")
    assert list(tmp_path.iterdir()) == []


def test_diverged_run_names_its_step(tmp_path, capsys):
    assert carried_out(tmp_path / "run", "optimizer.lr=1e30") is ExitCode.DIVERGED
    assert capsys.readouterr().err.startswith("pipetrain: error: diverged: the loss of step ")
    assert summary.read(RunDirectory(tmp_path / "run"))["status"] == "diverged"


@pytest.mark.parametrize(
    ("error", "status"), [(ValueError("no\nmore"), "failed"), (KeyboardInterrupt("SIGTERM"), "interrupted")]
)
def test_run_that_ends_early_leaves_a_summary_that_says_why(tmp_path, monkeypatch, capsys, error, status):
    def simulate(_job, _show):
        raise error

    monkeypatch.setattr("pipetrain.launch.worker.simulate", simulate)
    before = signal.getsignal(signal.SIGTERM)
    if status == "failed":
        assert carried_out(tmp_path / "run") is ExitCode.FAILED
        assert capsys.readouterr().err == "pipetrain: error: no more\n"
    else:
        with pytest.raises(KeyboardInterrupt):
            carried_out(tmp_path / "run")
        assert f"interrupted; partial results are in {tmp_path / 'run'}" in capsys.readouterr().out
    assert signal.getsignal(signal.SIGTERM) is before
    left = summary.read(RunDirectory(tmp_path / "run"))
    assert (left["status"], left["reason"]) == (status, str(error))


@pytest.mark.parametrize(
    ("executor", "size", "message"),
    [
        ("simulated", "2", "executor=simulated runs in one process, and RANK is set: start it without torchrun"),
        ("distributed", "3", "WORLD_SIZE=3: partition.stages=2 needs as many processes"),
    ],
)
def test_launcher_that_does_not_fit_the_run_is_refused(tmp_path, monkeypatch, capsys, executor, size, message):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", size)
    assert carried_out(tmp_path / "run", f"executor.name={executor}") is ExitCode.WRONG_USAGE
    assert capsys.readouterr().err == f"pipetrain: error: {message}\n"


def test_run_sent_to_the_directory_of_a_live_one_is_refused_and_touches_nothing(tmp_path, capsys):
    (tmp_path / "metrics.jsonl").write_text("")
    with locked(tmp_path):
        for resume in ("null", "auto"):
            assert carried_out(tmp_path, f"resume={resume}") is ExitCode.WRONG_USAGE
            out, err = capsys.readouterr()
            assert out == ""
            assert err.startswith(f"pipetrain: error: {tmp_path}: a run is writing here (process {os.getpid()} on ")
            assert err.count("\n") == 1
        assert sorted(path.name for path in tmp_path.iterdir()) == [".lock", "metrics.jsonl"]


def test_set_aside_that_was_killed_is_completed_before_the_next_run(tmp_path):
    (tmp_path / "earlier-1.partial").mkdir()
    (tmp_path / "earlier-1.partial" / "moving.json").write_text('["metrics.jsonl", "summary.json"]')
    (tmp_path / "summary.json").write_text("{}")
    assert carried_out(tmp_path, "train.epochs=0") is ExitCode.WRONG_USAGE
    assert [path.name for path in tmp_path.iterdir()] == ["earlier-1"]
    assert [path.name for path in (tmp_path / "earlier-1").iterdir()] == ["summary.json"]
