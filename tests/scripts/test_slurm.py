"""The batch script for Slurm, with stand-ins for Slurm's commands and for pipetrain."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from pipetrain.runner.tracking import summary
from pipetrain.runner.tracking.run_directory import RunDirectory

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "slurm.sbatch"
STAND_INS = {
    "srun": 'while [[ $1 = --* ]]; do shift; done\nexport SLURM_PROCID=5 SLURM_LOCALID=1\nexec "$@"',
    "scontrol": 'if [ "$1" = show ]; then printf "first\\nsecond\\n"; else echo "scontrol $*"; fi',
    "pipetrain": 'printf "%s\\n" "$@" "$RANK/$WORLD_SIZE" "$LOCAL_RANK/$LOCAL_WORLD_SIZE" "$MASTER_ADDR:$MASTER_PORT"'
    "\nexit $ENDS_WITH",
}

pytestmark = pytest.mark.skipif(shutil.which("bash") is None, reason="the script is for bash")


def submitted(tmp_path, ends_with, *words, **more):
    for name, body in STAND_INS.items():
        (tmp_path / name).write_text(f"#!/usr/bin/env bash\n{body}\n")
        (tmp_path / name).chmod(0o755)
    slurm = {
        "SLURM_JOB_ID": "77", "SLURM_JOB_NODELIST": "first,second", "SLURM_NTASKS": "8", "SLURM_NTASKS_PER_NODE": "4",
    }  # fmt: skip
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        ["bash", str(SCRIPT), *words], cwd=tmp_path, capture_output=True, text=True,
        env={**os.environ, "PATH": path, "ENDS_WITH": str(ends_with), **slurm, **more},
    )  # fmt: skip


def test_tasks_are_workers_of_one_run_that_survives_requeue(tmp_path):
    done = submitted(tmp_path, 0, "method=pipedream", "train.target={top1: 66}")
    assert done.stdout.splitlines() == [
        "run", "method=pipedream", "train.target={top1: 66}", "partition.stages=8", "hydra.run.dir=runs/77",
        "resume=auto", "5/8", "1/4", "first:20077",
    ]  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(("restarts", "left"), [("0", True), ("1", False)])
def test_restarted_job_removes_only_lock_left_by_crash(tmp_path, restarts, left):
    lock = tmp_path / "runs" / "77" / ".lock"
    lock.parent.mkdir(parents=True)
    lock.touch()
    submitted(tmp_path, 0, SLURM_RESTART_COUNT=restarts)
    assert lock.exists() == left


@pytest.mark.parametrize(("status", "requeued"), [("failed", False), ("diverged", False), ("interrupted", True)])
def test_job_is_not_requeued_because_workers_lost_one_that_failed(tmp_path, status, requeued):
    run = RunDirectory(tmp_path / "runs" / "77")
    run.path.mkdir(parents=True)
    summary.write(run, {"status": status})
    assert ("scontrol requeue 77" in submitted(tmp_path, 75).stdout) == requeued


@pytest.mark.parametrize(("ends_with", "restarts", "requeued"), [(75, "0", True), (75, "20", False), (1, "0", False)])
def test_job_is_requeued_where_slurm_ended_it_but_not_for_ever(tmp_path, ends_with, restarts, requeued):
    done = submitted(tmp_path, ends_with, SLURM_RESTART_COUNT=restarts)
    assert done.returncode == ends_with
    assert ("scontrol requeue 77" in done.stdout) == requeued
