"""Runs with replicas by the command: traced, resumed onto other replicas, and one with a replica that fails."""

import pytest
from support.cli import TINY, fails, run_here, summary

REPLICATED = (*TINY, "threads=1", "method=pipedream", "partition.stages=2")


@pytest.mark.slow
def test_replicated_run_resumes_on_others_and_names_failed_one(tmp_path):
    first = run_here(tmp_path / "a", *REPLICATED, "partition.replicas=[2,1]", "trace=true")
    found = summary(tmp_path / "a")
    assert "stage 0 has 2 replicas" in first.stdout
    assert (found["status"], found["replicas"]) == ("completed", [2, 1])
    assert [len(stage.get("replicas", [])) for stage in found["per_stage"]] == [2, 0]
    run_here(
        tmp_path / "b", *REPLICATED, "partition.replicas=[1,2]", "executor=simulated",
        f"resume={tmp_path / 'a'}", "train.epochs=3",
    )  # fmt: skip
    assert summary(tmp_path / "b")["steps"] == 15
    fails(
        tmp_path / "c", "threads=1", "method=pipedream", "partition=explicit", "partition.boundaries=[4]",
        "partition.replicas=[1,2]", "model=custom", "model._target_=support.faults.failing_layer", "+model.how=raise",
        "dataset.limit=1600", "train.batch_size=16", message=r"stage 1, replica [01] failed: ValueError: this layer",
    )  # fmt: skip
