"""The summary that is left where workers do not finish a run."""

import json

from support.worker_pool import job, simulated

from pipetrain.run.outcome import leave_summary
from pipetrain.tracking import summary


def test_summary_of_an_interrupted_run_tells_what_its_metrics_do(tmp_path):
    made = job(tmp_path, "pipedream", 2)
    records = [
        {"step": 6, "epoch": 0, "wall_s": 1.0, "per_stage": [], "eval": {"top1": 20.0}},
        {"step": 7, "epoch": 1, "wall_s": 1.5, "loss": 2.0},
    ]
    made.run.metrics.write_text("".join(json.dumps(record) + "\n" for record in records))
    leave_summary(made, "interrupted", "SIGTERM")
    left = summary.read(made.run)
    assert (left["status"], left["reason"], left["method"]) == ("interrupted", "SIGTERM", "pipedream")
    assert (left["steps"], left["epochs"], left["wall_s"], left["final"]) == (7, 1, 1.5, {"top1": 20.0})


def test_summary_of_a_run_that_never_started_has_no_steps(tmp_path):
    made = job(tmp_path, "pipedream", 2)
    leave_summary(made, "failed", "out of memory")
    assert (summary.read(made.run)["steps"], summary.read(made.run)["final"]) == (0, {})


def test_summary_that_the_workers_left_is_kept(tmp_path):
    made = job(tmp_path, "pipedream", 2)
    completed = simulated(made)
    leave_summary(made, "failed", "afterwards")
    assert summary.read(made.run) == completed
