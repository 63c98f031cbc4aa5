"""What happens when processes are killed, stopped or told to end: who is named, what is left."""

import os
import re
import shlex
import signal
import subprocess
import time
from pathlib import Path

import pytest
from process_tree import is_alive, workers
from support.cli import TINY, arguments, environment, pipetrain_here, records, run_here, summary
from support.processes import needs_proc
from support.waiting import eventually

from pipetrain.runner.training.checkpoint.contents import model_state
from pipetrain.runner.training.checkpoint.store import checkpoints

pytestmark = [pytest.mark.slow, needs_proc]

LONG = (
    "train.epochs=500", "partition.stages=3", "model=lenet5", "dataset.limit=3200", "threads=1", "eval.every_epochs=0",
    "checkpoint.every_steps=50",
)  # fmt: skip


@pytest.fixture
def started(tmp_path):
    """A run in the middle of an epoch, with a checkpoint behind it."""
    folder = tmp_path / "run"
    words = arguments("run", f"hydra.run.dir={folder}", *LONG, "launch.hang_timeout=8")
    process = subprocess.Popen(
        words, cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip
    metrics = folder / "metrics.jsonl"
    eventually(lambda: checkpoints(folder) and '"step": 52,' in metrics.read_text(), seconds=180)
    yield process, folder
    process.kill()
    process.communicate()


def ended(process: subprocess.Popen[str], pids: list[int], within: float) -> str:
    """What the run said on stderr; it and its workers must be gone."""
    _, error = process.communicate(timeout=within)
    assert not [pid for pid in pids if is_alive(pid)]
    return error


def checkpoints_load(folder: Path) -> None:
    found = checkpoints(folder)
    assert found
    for each in found:
        assert model_state(each)


@pytest.mark.parametrize(
    ("number", "message"),
    [
        (signal.SIGKILL, "stage 1 failed: killed by SIGKILL"),
        pytest.param(signal.SIGSTOP, "stage 1 hung: no sign of life for 8 s", marks=pytest.mark.exhaustive),
    ],
)
def test_killed_or_stopped_worker_ends_the_run_and_is_named(started, number, message):
    process, folder = started
    pids = workers(process.pid)
    os.kill(pids[1], number)
    error = ended(process, pids, within=40)
    assert process.returncode == 1
    assert error.splitlines() == [f"pipetrain: error: {message}; logs in {folder / 'logs'}"]
    assert summary(folder)["status"] == "failed"
    checkpoints_load(folder)


@pytest.mark.parametrize(
    ("number", "to_group", "code"),
    [(signal.SIGTERM, False, 75), (signal.SIGUSR1, True, 75), (signal.SIGINT, True, 130)],
)
def test_signal_ends_the_run_promptly_as_interrupted(started, number, to_group, code):
    process, folder = started
    pids = workers(process.pid)
    (os.killpg if to_group else os.kill)(process.pid, number)
    error = ended(process, pids, within=30)
    assert process.returncode == code
    assert error == ""
    left = summary(folder)
    assert left["status"] == "interrupted"
    at_checkpoint = left["steps"] % 50 == 0  # where the settings ask for a drain, too
    assert left["extra_drains"] == ([] if at_checkpoint else [left["steps"]])
    assert left["checkpoint"] == f"checkpoints/step-{left['steps']:08d}"
    checkpoints_load(folder)


def test_interrupted_run_goes_on_with_the_command_that_it_names(tmp_path):
    chosen = [*TINY, "dataset.limit=3200", "method=gpipe", "train.microbatches=4"]
    words = arguments("run", f"hydra.run.dir={tmp_path / 'a run'}", *chosen)
    process = subprocess.Popen(words, cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, text=True)
    metrics = tmp_path / "a run" / "metrics.jsonl"
    while process.poll() is None and not (metrics.exists() and metrics.read_text().count("interval") > 4):
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    step, command = re.search(r"interrupted; step (\d+) is saved; go on from there with: pipetrain (.*)", out).groups()
    assert 5 <= int(step) < 200
    again = pipetrain_here(*shlex.split(command), cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    continued = summary(tmp_path / "a run")
    run_here(tmp_path / "whole", *chosen, "executor=simulated")
    assert continued["extra_drains"] == []
    for name in ("status", "steps", "weights_sha256", "loss_sha256"):
        assert continued[name] == summary(tmp_path / "whole")[name], name


SLOW_EVALUATION = (
    "model=custom", "model._target_=support.sleeping_model.build", "+model.train_s=0.01", "dataset=fashion_mnist_mini",
    "dataset.limit=128", "train.batch_size=32", "train.epochs=2", "eval.batch_size=4", "threads=1",
)  # fmt: skip


@pytest.mark.parametrize(
    ("chosen", "reference"),
    [
        pytest.param(("method=pipedream", "partition.replicas=[2,1]"), ("executor=simulated",), id="replicas"),
        pytest.param(
            ("method=gpipe", "schedule=torch_interleaved_1f1b", "partition.stages=4", "train.microbatches=4"),
            None,
            id="torch",
            marks=pytest.mark.exhaustive,
        ),
    ],
)
def test_signal_ends_evaluation_and_resumed_run_repeats_it(tmp_path, chosen, reference):
    folder = tmp_path / "run"
    words = [*SLOW_EVALUATION, *chosen, f"hydra.run.dir={folder}"]
    long = arguments("run", *words, "+model.eval_s=0.5")
    process = subprocess.Popen(long, cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, text=True)
    metrics = folder / "metrics.jsonl"
    eventually(lambda: metrics.exists() and '"kind": "epoch"' in metrics.read_text(), seconds=60)
    time.sleep(1)
    process.send_signal(signal.SIGUSR1)
    out, _ = process.communicate(timeout=20)
    assert process.returncode == 75
    assert "interrupted; step 4 is saved; go on from there with: pipetrain run" in out
    done = run_here(folder, *SLOW_EVALUATION, *chosen, "+model.eval_s=0", "resume=auto")
    assert "the evaluation after step 4, which was interrupted, comes first" in done.stdout
    kinds = [(each["kind"], each["step"]) for each in records(folder) if each["kind"] in ("epoch", "eval")]
    assert kinds == [("epoch", 4), ("eval", 4), ("epoch", 8), ("eval", 8)]
    if reference is not None:
        run_here(tmp_path / "whole", *SLOW_EVALUATION, *chosen, *reference, "+model.eval_s=0")
        for name in ("status", "steps", "weights_sha256", "loss_sha256", "final", "best", "extra_drains"):
            assert summary(folder)[name] == summary(tmp_path / "whole")[name], name


def test_sigterm_ends_a_run_whose_workers_wait_for_messages(started):
    process, _ = started
    pids = workers(process.pid)
    os.kill(pids[1], signal.SIGSTOP)
    time.sleep(2)  # by now both neighbors wait
    os.kill(process.pid, signal.SIGTERM)
    time.sleep(0.5)
    os.kill(pids[1], signal.SIGCONT)
    ended(process, pids, within=10)
    assert process.returncode == 75


def test_torchrun_starts_and_resumes_a_run_whose_initial_weights_are_gone(tmp_path):
    words = ("model=lenet5", "dataset.limit=160", "train.batch_size=32", "executor=distributed")
    pipetrain_here("run", "hydra.run.dir=first", *words, "train.max_steps=1", cwd=tmp_path)
    assert pipetrain_here("export", "first", "-o", "w.pt", cwd=tmp_path).returncode == 0
    started = ("model.weights=w.pt", "train.epochs=1")
    assert pipetrain_here("run", "hydra.run.dir=apart/own", *words, *started, cwd=tmp_path).returncode == 0
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "pipetrain", "run"]
    ends = []
    for epochs in (1, 2):
        more = ["hydra.run.dir=run", "model.weights=w.pt", "resume=auto", f"train.epochs={epochs}"]
        done = subprocess.run(
            [arguments()[0], *launcher, *words, *more], cwd=tmp_path, env=environment(), capture_output=True, text=True,
            timeout=120,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        ends.append((done.stdout, summary(tmp_path / "run")))
        (tmp_path / "w.pt").unlink(missing_ok=True)
    (out, first), (_, second) = ends
    assert (out.count("writing to"), out.count("completed after 5 steps")) == (1, 1)
    assert first["weights_sha256"] == summary(tmp_path / "apart" / "own")["weights_sha256"]
    assert (first["steps"], second["steps"]) == (5, 10)
    assert first["initial_weights"] == second["initial_weights"] is not None
    assert sorted(path.name for path in tmp_path.iterdir()) == ["apart", "first", "run"]
