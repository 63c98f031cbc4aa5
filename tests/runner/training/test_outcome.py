"""The summary that is left where workers do not finish a run."""

import json

from support.worker_pool import job, simulated

from pipetrain.engine.schedules import Replicas
from pipetrain.runner.tracking import summary
from pipetrain.runner.tracking.records import MEASURED_OF_STAGES
from pipetrain.runner.training.outcome import ensure_summary, reports_by_stage


def test_summary_of_an_interrupted_run_tells_what_its_metrics_do(tmp_path):
    made = job(tmp_path, "pipedream", 2)
    stages = {f"stage{r}_{name}": 7 for r in range(2) for name in MEASURED_OF_STAGES}
    times = {"samples": 24, "train_s": 0.5}
    records = [
        {"kind": "start", "step": 0, "epoch": 0, "wall_s": 0.0},
        {"kind": "epoch", "step": 6, "epoch": 1, "wall_s": 1.0, "loss": 2.0, **times, **stages},
        {"kind": "eval", "step": 6, "epoch": 1, "wall_s": 1.2, "eval_s": 0.2, "eval_top1": 20.0},
        {"kind": "interval", "step": 7, "epoch": 2, "wall_s": 1.5, "loss": 2.0, **times},
    ]
    made.run.metrics.write_text("".join(json.dumps(record) + "\n" for record in records))
    ensure_summary(made, "interrupted", "SIGTERM")
    left = summary.read(made.run)
    assert (left["status"], left["reason"], left["method"]) == ("interrupted", "SIGTERM", "pipedream")
    assert (left["steps"], left["epochs"], left["wall_s"]) == (7, round(7 / 6, 4), 1.5)
    assert (left["final"], left["best_step"]) == ({"top1": 20.0}, {"top1": 6})
    assert left["samples_per_second"] == 48.0
    assert left["per_stage"][1]["activation_bytes_peak"] == 7


def test_summary_of_a_run_that_never_started_has_no_steps(tmp_path):
    made = job(tmp_path, "pipedream", 2)
    ensure_summary(made, "failed", "out of memory")
    assert (summary.read(made.run)["steps"], summary.read(made.run)["final"]) == (0, {})


def test_summary_that_the_workers_left_is_kept(tmp_path):
    made = job(tmp_path, "pipedream", 2)
    completed = simulated(made)
    ensure_summary(made, "failed", "afterwards")
    assert summary.read(made.run) == completed


def test_resumed_summary_excludes_earlier_stage_measurements(tmp_path):
    made = job(tmp_path, "pipedream", 3)
    stages = {f"stage{r}_{name}": 7 for r in range(2) for name in MEASURED_OF_STAGES}
    epoch = {"kind": "epoch", "step": 6, "epoch": 1, "wall_s": 1.0, "loss": 2.0, "samples": 24, "train_s": 0.5}
    made.run.metrics.write_text(json.dumps({**epoch, **stages}) + "\n")
    ensure_summary(made, "failed", "before its first step")
    assert [stage.get("idle_share") for stage in summary.read(made.run)["per_stage"]] == [None] * 3
    made = job(tmp_path, "pipedream", 2)
    made.run.summary.unlink()
    with made.run.metrics.open("a") as file:
        file.write(json.dumps({"kind": "start", "step": 6, "epoch": 1, "wall_s": 1.0}) + "\n")
    ensure_summary(made, "failed", "in its first step")
    assert [stage.get("idle_share") for stage in summary.read(made.run)["per_stage"]] == [None] * 2


def test_stage_report_is_of_its_worker_or_all_replicas():
    one = {"idle_share": 0.2, "forward_staleness": [1, 2], "weight_bytes_peak": 8, "unknown": None}
    two = {"idle_share": 0.4, "forward_staleness": [0, 1], "weight_bytes_peak": 9, "unknown": None}
    first, second = reports_by_stage([one, two, one], Replicas((2, 1)))
    assert first["idle_share"] == 0.30000000000000004
    assert (first["forward_staleness"], first["weight_bytes_peak"], first["unknown"]) == ([0, 1, 2], 9, None)
    assert first["replicas"] == [one, two]
    assert second == one
