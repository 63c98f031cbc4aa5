"""Rooms of the package that the others do without."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.slow
@pytest.mark.parametrize("room", ["planning", "reporting", "plugins", "plugins/torch_schedules", "plugins/trackers"])
def test_runs_without_a_room(tmp_path, room):
    for folder in ("pipetrain", "conf"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.rmtree(tmp_path / "pipetrain" / room)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    words = (
        "run", "model=lenet5", "dataset.limit=64", "train.batch_size=16", "train.epochs=1", "threads=1", "device=cpu",
        "executor=simulated,distributed", "hydra.sweep.dir=runs", "--multirun",
    )  # fmt: skip
    command = [sys.executable, "-m", "pipetrain", *words]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    summaries = [json.loads(path.read_text()) for path in sorted(tmp_path.glob("runs/*/summary.json"))]
    assert [each["status"] for each in summaries] == ["completed", "completed"]
    assert len({each["weights_sha256"] for each in summaries}) == 1
