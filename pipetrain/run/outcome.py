"""What a run came to: its summary, whether its workers finished it or not."""

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

from pipetrain.errors import DivergedError
from pipetrain.planner.plan import stale_weight_share
from pipetrain.run import checkpoint
from pipetrain.run.job import Job
from pipetrain.tracking import metrics_file, summary
from pipetrain.tracking.recorder import Recorder

Reports = Sequence[Mapping[str, Any]]


def summary_of_completed(
    job: Job, recorder: Recorder, reports: Reports, target: Mapping[str, Any] | None
) -> dict[str, Any]:
    """The summary of a run that reached its end, with the hash of its last checkpoint's weights."""
    weights = checkpoint.model_state(job.run.checkpoint(len(recorder.losses)))
    trained = _summary_of_trained(job, recorder, reports, target)
    return {**trained, "status": "completed", "weights_sha256": summary.weights_sha256(weights)}


def summary_of_diverged(
    job: Job, recorder: Recorder, reports: Reports, target: Mapping[str, Any] | None, error: DivergedError
) -> dict[str, Any]:
    """The summary of a run whose loss was not finite."""
    trained = _summary_of_trained(job, recorder, reports, target)
    return {**trained, "status": "diverged", "diverged_at_step": error.step, "reason": str(error)}


def _summary_of_trained(
    job: Job, recorder: Recorder, reports: Reports, target: Mapping[str, Any] | None
) -> dict[str, Any]:
    steps = len(recorder.losses)
    return {
        "status": None,
        **job.head(),
        "steps": steps,
        "epochs": round(steps / job.timetable.steps_per_epoch, 4),
        "wall_s": recorder.wall_s,
        "samples_per_second": recorder.samples_per_second,
        "target": target,
        "final": recorder.final,
        "best": recorder.best,
        "weights_sha256": None,
        "loss_sha256": summary.loss_sha256(recorder.losses),
        "stale_weight_share": stale_weight_share([stage["parameters"] for stage in job.plan]),
        "per_stage": [{**plan, **report} for plan, report in zip(job.plan, reports, strict=True)],
    }


def leave_summary(job: Job, status: str, reason: str) -> dict[str, Any]:
    """The summary that the workers left; where they did not finish the run, what the metrics tell, now written."""
    if (left := summary.read(job.run)) is not None:
        return left
    records = metrics_file.read(job.run)
    evaluations = [record["eval"] for record in records if "eval" in record]
    unfinished = {
        "status": status,
        **job.head(),
        "reason": reason,
        "steps": records[-1]["step"] if records else 0,
        "epochs": sum("per_stage" in record for record in records),
        "wall_s": records[-1]["wall_s"] if records else 0.0,
        "final": evaluations[-1] if evaluations else {},
        "per_stage": job.plan,
    }
    with contextlib.suppress(OSError):  # a full disk, or a directory that is gone
        summary.write(job.run, unfinished)
    return unfinished
