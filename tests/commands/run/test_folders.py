"""Which folders `pipetrain run` takes, in this process."""

import datetime
import re
import signal
import subprocess
import sys
import time

import hydra.core.utils
import pytest
from omegaconf import OmegaConf
from support.cli import TINY, arguments, environment, run_here, summary

from pipetrain import cli
from pipetrain.runner.tracking.run_lock import locked

SHORT = ("executor=simulated", *TINY, "device=cpu", "train.max_steps=1", "eval.every_epochs=0")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty working directory, in which it is always the same second."""

    class Clock(datetime.datetime):
        @classmethod
        def now(cls, tz=None):
            return cls(2026, 1, 2, 3, 4, 5, tzinfo=tz)

    monkeypatch.setattr(hydra.core.utils, "datetime", Clock)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.slow
def test_runs_of_the_same_second_have_a_directory_each(folder):
    for _ in range(2):
        assert cli.carry_out(["run", *SHORT]) == 0
    taken = folder / "outputs" / "2026-01-02"
    assert sorted(path.name for path in taken.iterdir()) == ["03-04-05", "03-04-05-2"]
    assert all((path / "summary.json").exists() for path in taken.iterdir())


@pytest.mark.slow
def test_sweeps_of_the_same_second_have_a_directory_each(folder):
    for _ in range(2):
        assert cli.carry_out(["run", "--multirun", *SHORT, "seed=0"]) == 0
    taken = folder / "multirun" / "2026-01-02"
    assert sorted(path.name for path in taken.iterdir()) == ["03-04-05", "03-04-05-2"]
    for sweep in taken.iterdir():
        assert sorted(path.name for path in sweep.iterdir()) == ["0", "multirun.yaml"]
        assert (sweep / "0" / "summary.json").exists()


@pytest.mark.slow
def test_sweep_into_folder_of_live_sweep_is_refused(folder, capsys):
    words = ["run", "--multirun", f"hydra.sweep.dir={folder}/sweep", "train.epochs=0,-1"]
    with locked(folder / "sweep"):
        assert cli.carry_out(words) == 2
        assert [path.name for path in (folder / "sweep").iterdir()] == [".lock"]
    assert "sweep: another run is writing here" in capsys.readouterr().err
    assert cli.carry_out(words) == 2
    assert capsys.readouterr().err.count("at least 1") == 2
    assert not (folder / "sweep" / ".lock").exists()


def test_sweep_that_cannot_make_its_folder_says_so_in_one_line(folder, capfd, recwarn):
    (folder / "multirun").touch()
    assert cli.carry_out(["run", "--multirun", "seed=0,1"]) == 2
    said = capfd.readouterr().err
    assert re.match(r"pipetrain: error: multirun\S*: Not a directory; .*hydra.sweep.dir", said), said
    assert said.count("\n") == 1
    assert not recwarn.list


@pytest.mark.slow
@pytest.mark.parametrize("swept", ["train.epochs=0,-1", "optimizer=adam,nonsense"])
def test_sweep_without_a_run_leaves_nothing(folder, capfd, swept):
    assert cli.carry_out(["run", "--multirun", swept, "model=lenet5", "dataset.limit=64"]) == 2
    assert not (folder / "multirun").exists()
    assert "next: " not in capfd.readouterr().out


@pytest.mark.slow
def test_live_run_keeps_its_directory_and_killed_one_resumes(tmp_path):
    folder, first = tmp_path / "run", tmp_path / "run" / "checkpoints" / "step-00000005"
    long = (*TINY, "train.epochs=1000", "eval.every_epochs=0", "device=cpu", "threads=1")
    words = arguments("run", f"hydra.run.dir={folder}", *long, "executor=simulated")
    with subprocess.Popen(words, cwd=tmp_path, env=environment(), stdout=subprocess.DEVNULL) as live:
        deadline = time.monotonic() + 60
        while not first.exists():
            assert live.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        live.send_signal(signal.SIGSTOP)  # alive, and no further than it needs to be
        for resume in ("null", "auto"):
            refused = run_here(folder, *long, "seed=1", f"resume={resume}", code=2)
            assert f"run: another run is writing here (process {live.pid} on " in refused.stderr
        refused = run_here(tmp_path / "other", *long, f"resume={folder}", code=2)
        assert f"{folder} is still running (process {live.pid} on " in refused.stderr
        live.kill()
    # a checkpoint that was still being written counts: one that lacks only its name is resumed from
    step = max(int(path.stem.removeprefix("step-")) for path in first.parent.glob("step-*"))
    short = (*long, f"train.max_steps={step + 3}")
    resumed = run_here(folder, *short, "resume=auto")
    assert f"executor.name simulated -> distributed, train.max_steps null -> {step + 3}\n" in resumed.stdout
    run_here(tmp_path / "whole", *short, "executor=simulated")
    for name in ("weights_sha256", "loss_sha256"):
        assert summary(folder)[name] == summary(tmp_path / "whole")[name]


@pytest.mark.parametrize("error", [KeyboardInterrupt(), KeyboardInterrupt("SIGTERM")])  # Python's, and our handler's
def test_folder_is_removed_when_interrupted_during_composition(tmp_path, monkeypatch, capsys, error):
    def main(**_settings):
        def interrupted():
            assert OmegaConf.create({"path": f"${{new_folder:{tmp_path}/outputs/2026-01-02/12-00-00}}"}).path
            raise error

        return lambda _task: interrupted

    monkeypatch.setattr("hydra.main", main)
    monkeypatch.setattr(sys, "argv", ["pipetrain"])
    with pytest.raises(KeyboardInterrupt):
        cli.carry_out(["run"])
    assert capsys.readouterr().out == "interrupted before the run began; nothing was written\n"
    assert not (tmp_path / "outputs").exists()
