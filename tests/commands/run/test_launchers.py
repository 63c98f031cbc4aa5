"""Sweeps whose runs other launchers than Hydra's own start, in processes of their own."""

import contextlib
import os
import re
import signal
import subprocess
from pathlib import Path

import pytest
from process_tree import below, is_alive
from support.cli import arguments, environment, pipetrain, summary
from support.processes import needs_proc
from support.waiting import eventually

pytestmark = pytest.mark.slow

SHORT = ("model=lenet5", "dataset.limit=64", "train.batch_size=32", "train.epochs=1", "threads=1", "executor=simulated")
JOBLIB = ("hydra/launcher=joblib", "hydra.launcher.n_jobs=2")
SUBMITIT = ("hydra/launcher=submitit_local",)
LAUNCHERS = pytest.mark.parametrize(
    ("plugin", "launcher"),
    [("hydra_joblib_launcher", JOBLIB), ("hydra_submitit_launcher", SUBMITIT)],
    ids=["joblib", "submitit"],
)
SLOW_DISK = """
import pathlib, time

rename = pathlib.Path.rename

def slowly(path, target):
    if path.name.startswith("step-"):
        time.sleep(4)
    return rename(path, target)

pathlib.Path.rename = slowly
"""


@pytest.fixture
def sweeping(tmp_path):
    """Begins a sweep of two runs that never end, each checkpoint of which takes seconds; waits until both train."""
    (tmp_path / "sitecustomize.py").write_text(SLOW_DISK)
    path, begun = f"{tmp_path}{os.pathsep}{environment()['PYTHONPATH']}", []

    def begin(launcher, *words):
        runs = [tmp_path / "sweep" / name for name in ("0_seed=0", "1_seed=1")]
        before = list(map(records, runs))
        words = ("run", "--multirun", *launcher, *SHORT, "seed=0,1", "hydra.sweep.dir=sweep", *words)
        words += ("train.epochs=100000", "log.every_steps=1", "launch.stop_timeout=100")
        process = subprocess.Popen(
            arguments(*words), cwd=tmp_path, env=environment(PYTHONPATH=path), process_group=0, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        begun.append(process)
        eventually(lambda: all(records(run) > old + 4 for run, old in zip(runs, before, strict=True)), seconds=300)
        return process, runs

    yield begin
    for process in begun:
        for each in (process.pid, *below(process.pid)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(each, signal.SIGKILL)
        process.communicate()


def records(run: Path) -> int:
    metrics = run / "metrics.jsonl"
    return len(metrics.read_text().splitlines()) if metrics.is_file() else 0


@needs_proc
@pytest.mark.parametrize(
    ("kill", "number"),
    [
        (os.killpg, signal.SIGTERM),
        pytest.param(os.killpg, signal.SIGINT, marks=pytest.mark.exhaustive),
        pytest.param(os.kill, signal.SIGUSR1, marks=pytest.mark.exhaustive),
        pytest.param(os.kill, signal.SIGHUP, marks=pytest.mark.exhaustive),
    ],
    ids=["group TERM", "group INT", "command USR1", "command HUP"],
)
@LAUNCHERS
def test_signal_has_each_run_save_before_the_command_ends(sweeping, plugin, launcher, kill, number):
    pytest.importorskip(f"hydra_plugins.{plugin}")
    process, runs = sweeping(launcher)
    kill(process.pid, number)
    out, err = process.communicate(timeout=200)
    assert process.returncode == (75 if number in (signal.SIGTERM, signal.SIGUSR1) else 130), err
    for run in runs:
        left = summary(run)
        assert left["status"] == "interrupted"
        assert (run / left["checkpoint"] / "manifest.json").is_file()
        assert f"{run.name}: step {int(left['checkpoint'][-8:])} is saved\n" in out
        assert not (run / ".lock").exists()
    assert err.endswith(f"pipetrain: interrupted by {number.name}\n")
    assert not below(process.pid)


@needs_proc
@LAUNCHERS
def test_runs_of_a_killed_command_end(sweeping, plugin, launcher):
    pytest.importorskip(f"hydra_plugins.{plugin}")
    process, runs = sweeping(launcher)
    started = below(process.pid)
    process.kill()
    eventually(lambda: not any(map(is_alive, started)), seconds=60)
    assert not any((run / "summary.json").exists() for run in runs)


def test_interrupted_sweep_goes_on_from_what_its_runs_have_saved(sweeping):
    pytest.importorskip("hydra_plugins.hydra_joblib_launcher")
    for resumed in (False, True):
        process, runs = sweeping(JOBLIB, *(["resume=auto"] if resumed else []))
        os.kill(process.pid, signal.SIGTERM)
        out, _ = process.communicate(timeout=200)
        assert len(re.findall("^continuing ", out, re.MULTILINE)) == (2 if resumed else 0)
        assert [summary(run)["status"] for run in runs] == ["interrupted"] * 2


@LAUNCHERS
def test_diverged_run_does_not_stop_the_sweep(tmp_path, plugin, launcher):
    pytest.importorskip(f"hydra_plugins.{plugin}")

    def sweep(*words):
        words = ("run", "--multirun", *launcher, *SHORT, "hydra.sweep.dir=sweep", *words)
        return pipetrain(*words, cwd=tmp_path, timeout=250)

    first = sweep("optimizer.lr=1e30,0.01")
    assert first.returncode == 3, first.stderr
    runs = [tmp_path / "sweep" / name for name in ("0_lr=1e+30", "1_lr=0.01")]
    assert [summary(each)["status"] for each in runs] == ["diverged", "completed"]
    assert "lr=1e+30" in first.stdout.partition("samples/s")[2]  # the table at the end has both
    before = (runs[1] / "summary.json").stat().st_mtime_ns
    # with another rate in place of the first one, the folder of the run that has completed is the same
    again = sweep("optimizer.lr=-1,0.01", "resume=auto")
    assert again.returncode == 2, again.stderr
    assert (runs[1] / "summary.json").stat().st_mtime_ns == before
