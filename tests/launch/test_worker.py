"""A run in one process: what it builds, and how it ends."""

import torch
from support.worker_pool import job, on, simulated

from pipetrain.launch.worker import build_parts
from pipetrain.tracking import summary


def test_parts_without_the_last_stage_record_nothing(tmp_path):
    made = job(tmp_path, "pipedream", 3)
    first = build_parts(made, [0], torch.device("cpu"), lambda _record: None)
    last = build_parts(made, [2], torch.device("cpu"), lambda _record: None)
    assert first.recorder is None
    assert last.recorder is not None
    assert last.on_step == last.recorder.step


def test_diverged_simulation_leaves_a_summary_with_every_stage(tmp_path):
    made = on("simulated", job(tmp_path / "run", "pipedream", 3, optimizer={"lr": 1e30}))
    result = simulated(made)
    assert result == summary.read(made.run)
    assert (result["status"], result["weights_sha256"]) == ("diverged", None)
    assert result["steps"] == result["diverged_at_step"]
    assert f"step {result['steps']} " in result["reason"]
    assert all("weight_versions_max" in stage for stage in result["per_stage"])
