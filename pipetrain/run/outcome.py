"""Summary of a run, finished or not."""

import contextlib
from collections.abc import Mapping, Sequence
from itertools import groupby
from statistics import fmean
from typing import Any

from pipetrain.arithmetic import switches_in_effect
from pipetrain.errors import DivergedError
from pipetrain.planner.run_plan import stale_weight_share
from pipetrain.run.checkpoint import store
from pipetrain.run.job import Job
from pipetrain.schedules import Replicas
from pipetrain.tracking import records, summary
from pipetrain.tracking.evaluations import Evaluations
from pipetrain.tracking.records import Record
from pipetrain.tracking.run_recorder import Recorder
from pipetrain.tracking.throughput import MEASURED, SIMULATOR, in_tokens

Reports = Sequence[Mapping[str, Any]]


def summary_of_completed(
    job: Job, recorder: Recorder, reports: Reports, target: Mapping[str, Any] | None
) -> dict[str, Any]:
    """The summary of a run that reached its end, with the hash of its last checkpoint's weights."""
    trained = _summary_of_trained(job, recorder, reports, target)
    weights = store.model_state(job.run.checkpoint(len(recorder.losses)))
    return {**trained, "status": "completed", "weights_sha256": summary.weights_sha256(weights)}


def summary_of_diverged(
    job: Job, recorder: Recorder, reports: Reports, target: Mapping[str, Any] | None, error: DivergedError
) -> dict[str, Any]:
    """The summary of a run whose loss was not finite."""
    trained = _summary_of_trained(job, recorder, reports, target)
    return {**trained, "status": "diverged", "diverged_at_step": error.step, "reason": str(error)}


def summary_of_interrupted(
    job: Job, recorder: Recorder, reports: Reports, target: Mapping[str, Any] | None
) -> dict[str, Any]:
    """The summary of a run that a signal ended, with a checkpoint of where it was."""
    trained = _summary_of_trained(job, recorder, reports, target)
    steps = len(recorder.losses)
    saved = {"checkpoint": str(job.run.checkpoint(steps).relative_to(job.run.path))} if steps else {}
    return {**trained, "status": "interrupted", "reason": f"a signal after step {steps}", **saved}


def _summary_of_trained(
    job: Job, recorder: Recorder, reports: Reports, target: Mapping[str, Any] | None
) -> dict[str, Any]:
    return {
        "status": None,
        **job.head(),
        **recorder.summary(),
        "target": target,
        "weights_sha256": None,
        "loss_sha256": summary.loss_sha256(recorder.losses),
        "stale_weight_share": stale_weight_share([stage["parameters"] for stage in job.plan]),
        **job.origin(),
        "arithmetic": switches_in_effect(job.device),
        "per_stage": [{**plan, **report} for plan, report in zip(job.plan, reports, strict=True)],
    }


def ensure_summary(job: Job, status: str, reason: str) -> dict[str, Any]:
    """The summary that the workers left; if they did not finish the run, one written now from the metrics."""
    if (left := summary.read(job.run)) is not None:
        return left
    found = records.read_records(job.run)
    epochs = [record for record in _since_start(found) if record["kind"] == "epoch"]
    measured = records.stage_measurements(epochs[-1], job.num_stages) if epochs else [{}] * job.num_stages
    unfinished = {
        "status": status,
        **job.head(),
        "reason": reason,
        **_summary_of_records(job, found),
        **job.origin(),
        "per_stage": [{**plan, **stage} for plan, stage in zip(job.plan, measured, strict=True)],
    }
    with contextlib.suppress(OSError):  # a full disk, or a directory that is gone
        summary.write(job.run, unfinished)
    return unfinished


def _since_start(found: Sequence[Record]) -> Sequence[Record]:
    """The records since the run was last started or resumed: before, the stages may have been different."""
    starts = [i for i, record in enumerate(found) if record["kind"] == "start"]
    return found[starts[-1] :] if starts else found


def _summary_of_records(job: Job, found: Sequence[Record]) -> dict[str, Any]:
    """Steps, times, throughput and metrics from the records."""
    steps = found[-1]["step"] if found else 0
    evaluations = Evaluations({}, job.lower_is_better)
    for record in found:
        if record["kind"] == "eval":
            evaluations.add(record["step"], record["epoch"], records.metrics_of(record))
    steady = [record for record in found if record["kind"] == "interval" and record["step"] > steps / 10]
    seconds = sum(record["train_s"] for record in steady)
    name = SIMULATOR if job.settings.executor.simulated else MEASURED
    units = {name: "samples", **({in_tokens(name): "tokens"} if steady and "tokens" in steady[0] else {})}
    return {
        "steps": steps,
        "epochs": round(steps / job.timetable.steps_per_epoch, 4),
        "wall_s": found[-1]["wall_s"] if found else 0.0,
        **{each: sum(record[unit] for record in steady) / seconds if seconds else None for each, unit in units.items()},
        **evaluations.fields(),
    }


Report = Mapping[str, Any]


def reports_by_stage(reports: Sequence[Report], replicas: Replicas) -> list[dict[str, Any]]:
    """A report of each stage: its only worker's report, or its replicas' reports combined and side by side.

    Of its replicas' staleness it has all values, of their idle shares the mean, of other numbers the largest.

    Args:
        reports: of every worker.
        replicas: who they are.
    """
    by_stage = groupby(zip(replicas.places, reports, strict=True), key=lambda each: each[0][0])
    return [_together([report for _, report in of_stage]) for _, of_stage in by_stage]


def _together(reports: Sequence[Report]) -> dict[str, Any]:
    if len(reports) == 1:
        return dict(reports[0])
    known = {name: [each[name] for each in reports if each.get(name) is not None] for name in reports[0]}
    together = {name: _of_all(name, values) for name, values in known.items()}
    return {**together, "replicas": [dict(report) for report in reports]}


def _of_all(name: str, values: Sequence[Any]) -> Any:
    if not values:
        return None
    if isinstance(values[0], list):
        return sorted({each for value in values for each in value})
    return fmean(values) if name == "idle_share" else max(values)
