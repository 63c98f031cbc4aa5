"""Reads a run from its directory, as reports compare it."""

import math
import statistics
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from typing import Any

from pipetrain.data.files import strict_json
from pipetrain.engine.errors import ConfigError, one_line
from pipetrain.reporting.steps_to_loss import LossCurve
from pipetrain.reporting.sweep.compared_run import TRAIN_LOSS, WALL_S, ComparedRun, Curve, Point
from pipetrain.runner.tracking import summary
from pipetrain.runner.tracking.evaluations import lower_is_better, reaches
from pipetrain.runner.tracking.records import Record, metrics_of, read_records
from pipetrain.runner.tracking.run_directory import RunDirectory
from pipetrain.runner.tracking.run_lock import owner_of
from pipetrain.runner.tracking.stored_settings import values_set
from pipetrain.runner.tracking.summary import totals_of_stages
from pipetrain.runner.tracking.throughput import ALL_THROUGHPUTS, MEASURED, PREDICTED

_MOST_LOSSES = 100
_LARGEST = 1e100
"""Larger numbers are left out: their sums and squares may overflow, and no measurement comes near."""
_NUMBERS = ("steps", "epochs", "wall_s", "train_s", "eval_s", *ALL_THROUGHPUTS)
_OF_STAGES = ("weight_bytes_peak", "activation_bytes_peak")
_OF_COMPLETED = {"method", "final", "best", "per_stage"}


def read(run: RunDirectory, target: Mapping[str, float], lower: Collection[str] = ()) -> ComparedRun:
    """The run of a directory, `damaged` if it cannot be read.

    Args:
        run: the directory.
        target: metrics whose time is asked for; if it is empty, the time to the run's own target is.
        lower: metrics that fall as a model improves, of a run without a summary.
    """
    try:
        return _read(run, target, lower)
    except KeyError as error:
        reason = f"{error} is missing in its summary or in one of its records"
    except Exception as error:  # a damaged file may cause any
        reason = one_line(error) or type(error).__name__
    return ComparedRun(run.path, "damaged", reason)


def _read(run: RunDirectory, target: Mapping[str, float], lower: Collection[str]) -> ComparedRun:
    content = _summary(run)
    settings, given = _settings(run, content), _given(run)
    began = datetime.fromtimestamp(run.config.stat().st_mtime, UTC).isoformat()
    # defaults for a run without a summary, which would have these
    content = {"executor": settings.get("executor.name"), "started_at": began, "lower_is_better": lower, **content}
    lower = lower_is_better(content["lower_is_better"])
    records, stages = read_records(run), content.get("per_stage", [])
    reached = _first_reaching(target, lower, records) if target else content.get("target") or {}
    return ComparedRun(
        path=run.path,
        status=content["status"],
        reason=None if content.get("reason") is None else one_line(str(content["reason"])),
        settings={**_single(given, settings), **settings},
        asked=[part for name in given for part in _parts(name, settings) or [name]],
        final=_finite(content.get("final", {})),
        best=_finite(content.get("best", {})),
        numbers=_finite(_numbers(content, records, reached)),
        aims=bool(target or content.get("target_metrics")),
        facts=_facts(run, content, records),
        provenance=_provenance(content),
        started_at=_in_utc(str(content["started_at"])),
        staleness=[max(map(int, stage.get("forward_staleness") or []), default=0) for stage in stages],
        by_stage=_by_stage(stages),
        curves=_curves(records, content),
        lower_is_better=lower,
        losses=_losses(records),
        per_step=_per_step(content),
    )


def _summary(run: RunDirectory) -> Mapping[str, Any]:
    """The summary, or the status alone of a run that has none."""
    content = summary.read(run) or {"status": "running" if owner_of(run.path) else "unfinished"}
    if content["status"] == "completed" and (missing := _OF_COMPLETED - content.keys()):
        raise ConfigError(f"{run.summary}: damaged: it has no {', '.join(sorted(missing))}")
    if not run.config.is_file():
        raise ConfigError(f"it has no {run.config.name}")
    return content


def _settings(run: RunDirectory, content: Mapping[str, Any]) -> dict[str, Any]:
    named = {name: content[name] for name in ("method", "schedule", "model", "dataset") if name in content}
    choices = content.get("choices") or run.choices() or named
    config = run.stored_values()
    return values_set(config, choices) | {"seed": content.get("seed", config.get("seed"))}


def _given(run: RunDirectory) -> dict[str, str]:
    """Setting -> value, as the command line has them."""
    words = (word.lstrip("+").partition("=") for word in run.overrides() if not word.startswith("~"))
    return {name: value for name, _, value in words if value != "null"}


def _parts(name: str, settings: Mapping[str, Any]) -> list[str]:
    """The settings that one on the command line holds, such as `train.target={top1: 80}`, whatever its spelling."""
    return [] if name in settings else [each for each in settings if each.startswith(f"{name}.")]


def _single(given: Mapping[str, str], settings: Mapping[str, Any]) -> dict[str, str]:
    """The given settings that do not hold several."""
    return {name: value for name, value in given.items() if not _parts(name, settings)}


def _numbers(content: Mapping[str, Any], records: Sequence[Record], reached: Record) -> dict[str, Any]:
    """The columns of the whole run, some None; `reached` is the evaluation that reached the target."""
    step_s = _step_s(content, PREDICTED)
    return {
        **{name: content.get(name) for name in _NUMBERS},
        **totals_of_stages(content.get("per_stage", [])),
        "first_loss": next((record.get("loss") for record in records if record["kind"] == "interval"), None),
        "target_s": reached.get("wall_s"),
        "target_epochs": reached.get("epoch"),
        "predicted_target_s": step_s * reached["step"] if step_s and reached else None,
    }


def _provenance(content: Mapping[str, Any]) -> dict[str, str]:
    commit = str(content.get("git_commit") or "unknown")[:10] + ("+changes" if content.get("git_dirty") else "")
    return {"commit": commit, "host": str(content.get("host") or "unknown")}


def _finite(numbers: Mapping[str, Any]) -> dict[str, float]:
    """The known numbers; a TypeError if one is no number."""
    return {name: value for name, value in numbers.items() if value is not None and math.fabs(value) < _LARGEST}


def _by_stage(stages: Sequence[Mapping[str, Any]]) -> dict[str, list[float]]:
    """The numbers that all stages have."""
    measured = {name: [_finite({name: stage.get(name)}) for stage in stages] for name in _OF_STAGES}
    return {name: [stage[name] for stage in found] for name, found in measured.items() if found and all(found)}


def _facts(run: RunDirectory, content: Mapping[str, Any], records: Sequence[Record]) -> dict[str, str]:
    """Facts that the settings leave open: cut points, number of parameters, samples per epoch.

    Settings alone do not determine them if a plan comes from a file or from a measurement, or if a model or data of
    one name has changed.
    """
    facts = _planned(run.plan) if run.plan.is_file() else {}
    if stages := content.get("per_stage"):
        facts["stages"] = str(len(stages))
    samples = _epoch_samples([record for record in records if record["kind"] == "epoch"], content["status"])
    return facts if samples is None else {**facts, "epoch_samples": str(int(samples))}


def _epoch_samples(ends: Sequence[Record], status: str) -> float | None:
    """Samples of the first epoch, by the records of the ends of epochs; None if it may have ended early."""
    if not ends or (status != "completed" and ends[-1]["epoch"] == 1):
        return None
    first = [record["samples"] for record in ends if record["epoch"] == 1 and "samples" in record]
    return first[-1] if first else None


def _planned(path: Path) -> dict[str, str]:
    """Facts of plan.json: the first layer of every stage, with the replicas if any has several, and the parameters."""
    try:
        plan = strict_json.read(path)
        cut = ",".join(str(int(stage["first"])) for stage in plan["stages"])
        replicas = [int(each) for each in plan.get("replicas") or ()]
        if any(each > 1 for each in replicas):
            cut += f" replicas={','.join(map(str, replicas))}"
        return {"cut": cut, "parameters": str(int(plan["parameters"]))}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{path}: damaged: {one_line(error)}") from error


def _in_utc(moment: str) -> str:
    """Converts a date and time to UTC, so that texts sort; returns anything else unchanged."""
    try:
        return datetime.fromisoformat(moment).astimezone(UTC).isoformat()
    except ValueError:
        return moment


def _first_reaching(target: Mapping[str, float], lower: Collection[str], records: Sequence[Record]) -> Record:
    """The first evaluation that reached all metrics of the target; empty if none did."""
    for record in records:
        metrics = metrics_of(record) if record["kind"] == "eval" else {}
        if all(name in metrics and reaches(metrics[name], goal, lower=name in lower) for name, goal in target.items()):
            return record
    return {}


def _curves(records: Sequence[Record], content: Mapping[str, Any]) -> dict[str, Curve]:
    """Metric, throughput or `train_loss` -> its curve."""
    step_s, simulated = _step_s(content, PREDICTED), _simulated(content)

    def seconds(record: Record) -> float | None:
        """Measured, or, in a simulation, that of the same steps at the predicted throughput."""
        if not simulated:
            return _finite({WALL_S: record.get("wall_s")}).get(WALL_S)
        return None if step_s is None else step_s * record["step"]

    def point(record: Record, value: float) -> Point:
        return Point(float(record["epoch"]), value, record["step"], seconds(record))

    found: dict[str, Curve] = {}
    for record in records:
        for name, value in _finite(_evaluated(record)).items():
            found.setdefault(name, []).append(point(record, value))
    if binned := _binned([record for record in records if record["kind"] == "interval"]):
        found[TRAIN_LOSS] = [point(last, loss) for last, loss in binned]
    return found


def _evaluated(record: Record) -> Mapping[str, Any]:
    """The metrics of an evaluation, or the throughput of an epoch."""
    if record["kind"] == "epoch":
        return {name: record[name] for name in ALL_THROUGHPUTS if name in record}
    return metrics_of(record) if record["kind"] == "eval" else {}


def _binned(intervals: Sequence[Record]) -> list[tuple[Record, float]]:
    """Means of the training losses over equal numbers of steps, each with the last record of these steps.

    The number is the least power of two with which there are not too many.
    """
    width = 1
    while max((record["step"] for record in intervals), default=0) > _MOST_LOSSES * width:
        width *= 2
    known = [record for record in intervals if _finite({TRAIN_LOSS: record.get("loss")})]
    groups = (list(part) for _, part in groupby(known, key=lambda record: (record["step"] - 1) // width))
    return [(part[-1], statistics.fmean(record["loss"] for record in part)) for part in groups]


def _losses(records: Sequence[Record]) -> LossCurve:
    known = [record for record in records if record["kind"] == "interval" and record.get("loss") is not None]
    return LossCurve([float(record["step"]) for record in known], [record["loss"] for record in known])


def _per_step(content: Mapping[str, Any]) -> dict[str, float]:
    steps = content.get("steps")
    amounts = {name: content[name] / steps for name in ("samples", "tokens") if steps and content.get(name)}
    seconds = _step_s(content, PREDICTED if _simulated(content) else MEASURED)
    return amounts if seconds is None else {**amounts, "seconds": seconds}


def _simulated(content: Mapping[str, Any]) -> bool:
    return content.get("executor") == "simulated" or content.get(PREDICTED) is not None


def _step_s(content: Mapping[str, Any], speed: str) -> float | None:
    """Seconds of a step at a throughput: that measured, or that predicted for the pipeline that is simulated."""
    samples, steps, per_second = (content.get(name) for name in ("samples", "steps", speed))
    return samples / steps / per_second if samples and steps and per_second else None
