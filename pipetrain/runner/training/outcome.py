"""Summary of a run, finished or not."""

import contextlib
from collections.abc import Mapping, Sequence
from itertools import groupby
from statistics import fmean
from typing import Any

from pipetrain.engine.arithmetic import switches_in_effect
from pipetrain.engine.schedules import Replicas
from pipetrain.runner.tracking import records, summary
from pipetrain.runner.tracking.evaluations import Evaluations
from pipetrain.runner.tracking.run_recorder import Recorder
from pipetrain.runner.tracking.throughput import MEASURED, SIMULATOR, in_tokens
from pipetrain.runner.training.job import Job

Report = Mapping[str, Any]
"""Fields of a worker or a stage, or of the run."""


def summary_of(
    job: Job, recorder: Recorder, reports: Sequence[Report], target: Report | None, **ending: Any
) -> dict[str, Any]:
    """The summary of a run whose recorder is in this process, with the reports of every stage.

    `target` is where the run reached its target; `ending` has its status, and further fields on how it ended.
    """
    return {
        "status": None,
        **job.head(),
        **recorder.summary(),
        "target": target,
        "weights_sha256": None,
        "loss_sha256": summary.loss_sha256(recorder.losses),
        "stale_weight_share": job.plan.stale_weight_share,
        **job.origin(),
        "arithmetic": switches_in_effect(job.device),
        "per_stage": _per_stage(job, reports),
        **ending,
    }


def _per_stage(job: Job, reports: Sequence[Report]) -> list[dict[str, Any]]:
    planned = (
        {"layers": stage.last - stage.first, "parameters": stage.parameters, "weight_bytes": stage.weight_bytes}
        for stage in job.plan.stages
    )
    return [{**plan, **report} for plan, report in zip(planned, reports, strict=True)]


def ensure_summary(job: Job, status: str, reason: str) -> dict[str, Any]:
    """The summary that the workers left; if they did not finish the run, one written now from the metrics."""
    if (left := summary.read(job.run)) is not None:
        return left
    found = records.read_records(job.run)
    last = found[-1] if found else {"step": 0, "wall_s": 0.0}
    evaluations = Evaluations({}, job.lower_is_better)
    for record in _of_kind("eval", found):
        evaluations.add(record["step"], record["epoch"], records.metrics_of(record))
    unfinished = {
        "status": status,
        **job.head(),
        "reason": reason,
        "steps": last["step"],
        "epochs": round(last["step"] / job.timetable.steps_per_epoch, 4),
        "wall_s": last["wall_s"],
        **_throughput(job, [each for each in _of_kind("interval", found) if each["step"] > last["step"] / 10]),
        **evaluations.fields(),
        **job.origin(),
        "per_stage": _per_stage(job, _last_measured(job, found)),
    }
    with contextlib.suppress(OSError):  # a full disk, or a directory that is gone
        summary.write(job.run, unfinished)
    return unfinished


def _of_kind(kind: str, found: Sequence[Report]) -> list[Report]:
    return [record for record in found if record["kind"] == kind]


def _throughput(job: Job, steady: Sequence[Report]) -> dict[str, float | None]:
    """Samples, and perhaps tokens, per second of training; None if there are no intervals."""
    name = SIMULATOR if job.settings.executor.simulated else MEASURED
    units = {name: "samples", **({in_tokens(name): "tokens"} if steady and "tokens" in steady[0] else {})}
    seconds = sum(record["train_s"] for record in steady)
    return {each: sum(record[unit] for record in steady) / seconds if seconds else None for each, unit in units.items()}


def _last_measured(job: Job, found: Sequence[Report]) -> list[dict[str, Any]]:
    """The last measurements of each stage since the run was last started or resumed: earlier stages may differ."""
    start = max((i for i, record in enumerate(found) if record["kind"] == "start"), default=0)
    epochs = _of_kind("epoch", found[start:])
    return records.stage_measurements(epochs[-1], job.num_stages) if epochs else [{}] * job.num_stages


def reports_by_stage(reports: Sequence[Report], replicas: Replicas) -> list[dict[str, Any]]:
    """A report of each stage: its only worker's report, or its replicas' reports combined and side by side.

    A combined report has all values of staleness, the mean of the idle shares, and the largest of other numbers.
    """
    by_stage = groupby(zip(replicas.places, reports, strict=True), key=lambda each: each[0][0])
    return [_combined([dict(report) for _, report in of_stage]) for _, of_stage in by_stage]


def _combined(reports: Sequence[dict[str, Any]]) -> dict[str, Any]:
    if len(reports) == 1:
        return reports[0]
    combined: dict[str, Any] = {}
    for name in reports[0]:
        values = [each[name] for each in reports if each.get(name) is not None]
        if not values:
            combined[name] = None
        elif isinstance(values[0], list):
            combined[name] = sorted({each for value in values for each in value})
        else:
            combined[name] = fmean(values) if name == "idle_share" else max(values)
    return {**combined, "replicas": reports}
