"""Faults at chosen points of whole runs: who is named, how soon, and that nothing stays behind."""

import contextlib
import os
import signal
import subprocess
import time

import pytest
from process_tree import below, children, command, is_alive, workers
from support.cli import arguments, environment, fails, records, run_here, summary
from support.processes import needs_proc
from support.waiting import eventually

pytestmark = [pytest.mark.slow, needs_proc]

QUICK = ("dataset.limit=128", "train.batch_size=16", "train.epochs=2", "threads=1", "launch.hang_timeout=4")
LENET = ("model=lenet5", "dataset.limit=640", "train.batch_size=16", "train.epochs=500", "threads=1")
TORCHRUN = [*arguments()[:1], "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
_START_SECONDS = 180.0  # a busy machine takes long


def model(point, how, rank=1, nth=1):
    fault = (f"+model.point={point}", f"+model.how={how}", f"+model.rank={rank}", f"+model.nth={nth}")
    return ("model=custom", "model._target_=support.faults.model", *fault)


def data(how):
    return ("model=lenet5", "dataset=custom", "dataset._target_=support.faults.data", f"+dataset.how={how}")


def layer(how):
    """A model whose fifth layer fails in the middle of the run."""
    words = ("model=custom", "model._target_=support.faults.failing_layer", f"+model.how={how}", "+model.nth=6")
    return (*words, "partition=explicit", "partition.boundaries=[4,5]")


UPDATE = "pipetrain.engine.stage.stage.Stage.update"
WRITE = "pipetrain.runner.training.checkpoint.tensor_file.write"
SCORE = "pipetrain.engine.executors.evaluation.PartScore.of"
LEAVE_GROUP = "torch.distributed.destroy_process_group"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (layer("raise"), r"stage 1 failed: ValueError: this layer gave up .*\(.*faults.py:\d+\); traceback in "),
        (layer("sleep"), r"stage 1 hung: \d+ s in F5\.0"),
        (model(UPDATE, "exit0", nth=3), "stage 1 failed: it ended with exit code 0 before the run did; logs in"),
        (model(WRITE, "sleep"), r"stage 1 hung: \d+ s in writing the checkpoint of step 8; logs in"),
        (model(WRITE, "SIGKILL"), "stage 1 failed: killed by SIGKILL; logs in"),
        (model(WRITE, "SIGSTOP", rank=0), "stage 0 hung: no sign of life"),
        (model(SCORE, "sleep"), r"stage 1 hung: \d+ s in evaluation 1 of \d+; logs in"),
        ((*model(UPDATE, "hold", rank=0), "partition.stages=1"), "stage 0 hung: no sign of life"),
        ((*data("sleep"), "launch.start_timeout=8"), "stage 1 hung: not started after launch.start_timeout=8 s"),
    ],
    ids=[
        "exception",
        "layer",
        "exit code 0",
        "checkpoint",
        "killed in checkpoint",
        "stopped in checkpoint",
        "evaluation",
        "lock held",
        "start",
    ],
)
def test_the_one_at_fault_is_named(tmp_path, words, message):
    fails(tmp_path / "run", *QUICK, *words, message=message)
    assert summary(tmp_path / "run")["status"] == "failed"


@pytest.mark.parametrize(
    "words",
    [data("sleep7"), model(UPDATE, "thread"), model(UPDATE, "usr1"), model(LEAVE_GROUP, "SIGSTOP")],
    ids=["slow data set", "thread that goes on", "own signal", "stopped at the end"],
)
def test_run_that_does_its_work_completes(tmp_path, words):
    run_here(tmp_path / "run", *QUICK, *words)
    assert summary(tmp_path / "run")["status"] == "completed"


def started(tmp_path, *words, launcher=()):
    given = {word.partition("=")[0] for word in words}
    words = [*(word for word in LENET if word.partition("=")[0] not in given), *words]
    return subprocess.Popen(
        [*arguments("run", "hydra.run.dir=run", *words)] if not launcher else [*launcher, *words],
        cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip


def trains(folder):
    metrics = folder / "metrics.jsonl"
    return lambda: metrics.exists() and metrics.read_text().count("\n") > 5


@pytest.mark.parametrize("when", ["importing", "starting", "training"])
def test_no_process_outlives_its_launcher(tmp_path, when):
    launcher = started(tmp_path)
    try:
        if when == "importing":
            eventually(lambda: any("forkserver" in command(child) for child in children(launcher.pid)), _START_SECONDS)
        elif when == "starting":
            eventually(lambda: len(workers(launcher.pid)) == 2, _START_SECONDS)
        else:
            eventually(trains(tmp_path / "run"), _START_SECONDS)
            os.kill(workers(launcher.pid)[1], signal.SIGSTOP)
        left = below(launcher.pid)
    finally:
        launcher.kill()
        launcher.communicate()
    eventually(lambda: not any(map(is_alive, left)), seconds=5)


@pytest.mark.parametrize("who", ["worker", "fork server"])
def test_no_process_outlives_killed_worker_or_fork_server(tmp_path, who):
    process = started(tmp_path, "dataset.workers=1")
    try:
        readers = lambda: below(workers(process.pid)[0])  # noqa: E731
        eventually(lambda: trains(tmp_path / "run")() and readers(), _START_SECONDS)
        left = below(process.pid)
        found = workers(process.pid) if who == "worker" else children(process.pid)
        os.kill(next(each for each in found if "forkserver" in command(each)), signal.SIGKILL)
        eventually(lambda: not any(map(is_alive, left)), seconds=30)
    finally:
        for each in (process.pid, *left):
            with contextlib.suppress(ProcessLookupError):
                os.kill(each, signal.SIGKILL)
    assert process.communicate(timeout=20)[1].count("\n") == 1


def test_run_ends_although_its_fork_server_is_stopped(tmp_path):
    process = started(tmp_path, "train.epochs=1")
    eventually(trains(tmp_path / "run"), _START_SECONDS)
    os.kill(next(each for each in children(process.pid) if "forkserver" in command(each)), signal.SIGSTOP)
    _, error = process.communicate(timeout=60)
    assert (process.returncode, error) == (0, "")


def test_stopped_and_continued_run_is_not_a_hang(tmp_path):
    process = started(tmp_path, "launch.hang_timeout=3", "train.epochs=4")
    eventually(trains(tmp_path / "run"), _START_SECONDS)
    os.killpg(process.pid, signal.SIGSTOP)
    time.sleep(6)
    os.killpg(process.pid, signal.SIGCONT)
    _, error = process.communicate(timeout=100)
    assert (process.returncode, error) == (0, "")


def test_ctrl_c_ends_a_sweep_whatever_its_jobs_are(tmp_path):
    words = ("--multirun", "executor=distributed,simulated", "seed=0,1", "hydra.sweep.dir=sweep")
    launcher = arguments("run", *words)
    process = started(tmp_path, "train.epochs=1", "dataset.limit=64", launcher=launcher)
    second = tmp_path / "sweep"
    eventually(lambda: len(list(second.rglob("metrics.jsonl"))) == 2, _START_SECONDS)
    os.kill(process.pid, signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130
    assert len(list(second.rglob("metrics.jsonl"))) == 2  # no third run has begun


def test_closed_terminal_does_not_end_what_nohup_started(tmp_path):
    launcher = ["nohup", *arguments("run", "hydra.run.dir=run")]
    process = started(tmp_path, "train.epochs=4", launcher=launcher)
    eventually(trains(tmp_path / "run"), _START_SECONDS)
    os.killpg(process.pid, signal.SIGHUP)
    process.communicate(timeout=100)
    assert summary(tmp_path / "run")["status"] == "completed"


def test_torchrun_run_resumes_after_killed_worker(tmp_path):
    # the tenth update of a start: that from the checkpoint of step 4 has eight
    words = (*model(UPDATE, "SIGKILL", nth=10), *QUICK, "train.max_steps=12", "checkpoint.every_steps=4")
    torchrun = [*TORCHRUN, "--max-restarts", "1", "-m", "pipetrain", "run", "hydra.run.dir=run", *words]
    done = subprocess.run(torchrun, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    run_here(tmp_path / "whole", *words, "executor=simulated")
    for name in ("status", "steps", "weights_sha256", "loss_sha256"):
        assert summary(tmp_path / "run")[name] == summary(tmp_path / "whole")[name], name
    starts = [record["step"] for record in records(tmp_path / "run") if record["kind"] == "start"]
    assert starts in ([0, 4], [0, 8])


def test_worker_of_torchrun_that_is_killed_is_named_by_the_other(tmp_path):
    """Rank 0, which otherwise reports for the run, is the one that is killed."""
    launcher = [*TORCHRUN, "-m", "pipetrain", "run", "hydra.run.dir=run"]
    process = started(tmp_path, launcher=launcher)
    eventually(trains(tmp_path / "run"), _START_SECONDS)
    ranks = [child for child in children(process.pid) if "pipetrain" in command(child)]
    os.kill(ranks[0], signal.SIGKILL)
    _, error = process.communicate(timeout=60)
    failure = "stage 0 failed: its process ended without a word"
    assert error.count(f"pipetrain: error: {failure}; logs in ") == 1
    assert (summary(tmp_path / "run")["status"], summary(tmp_path / "run")["reason"]) == ("failed", failure)
