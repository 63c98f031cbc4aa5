"""A run as it is compared with others: its settings, results and curves, read from its directory."""

import math
import statistics
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from pipetrain.engine.errors import ConfigError, one_line
from pipetrain.engine.files import strict_json
from pipetrain.reporting.steps_to_loss import LossCurve
from pipetrain.runner.tracking import summary
from pipetrain.runner.tracking.evaluations import lower_is_better, reaches
from pipetrain.runner.tracking.records import Record, metrics_of, read_records
from pipetrain.runner.tracking.run_directory import RunDirectory
from pipetrain.runner.tracking.run_lock import owner_of
from pipetrain.runner.tracking.stored_settings import values_set
from pipetrain.runner.tracking.summary import totals_of_stages
from pipetrain.runner.tracking.throughput import ALL_THROUGHPUTS, MEASURED, PREDICTED

TRAIN_LOSS = "train_loss"
"""The curve of the training loss."""
EPOCH, STEP, WALL_S, PREDICTED_S = "epoch", "step", "wall_s", "predicted_s"
AXES = (EPOCH, STEP, WALL_S, PREDICTED_S)
"""Axes of curves; the time of a simulation is that predicted for its pipeline."""
_MOST_LOSSES = 100
_LARGEST = 1e100
"""Larger numbers are left out: their sums and squares may overflow, and no measurement comes near."""
_NUMBERS = ("steps", "epochs", "wall_s", "train_s", "eval_s", *ALL_THROUGHPUTS)
_OF_STAGES = ("weight_bytes_peak", "activation_bytes_peak")
_OF_COMPLETED = {"method", "final", "best", "per_stage"}


class Point(NamedTuple):
    """A point of a curve.

    Attributes:
        epoch: the epoch that it is in, from 1.
        value: of the metric, loss or throughput.
        step: steps so far; None if unknown.
        seconds: since training began, measured, or in a simulation predicted; None if unknown.
    """

    epoch: float
    value: float
    step: int | None = None
    seconds: float | None = None

    @property
    def place(self) -> float:
        """Sort key of the points of a run."""
        return self.epoch if self.step is None else self.step

    def at(self, axis: str, *, predicted: bool) -> float | None:
        """Position on an axis; None if unknown."""
        seconds = PREDICTED_S if predicted else WALL_S
        return {EPOCH: self.epoch, STEP: self.step, seconds: self.seconds}.get(axis)


Curve = list[Point]
"""The points of a run, in their order."""
_NO_LOSSES = LossCurve((), ())


@dataclass(frozen=True)
class ComparedRun:
    """Results of a run.

    Attributes:
        path: its directory.
        status: of its summary; `running` or `unfinished` if it has none, `damaged` if files cannot be read.
        reason: why it did not complete.
        settings: every value that was set, by its name on the command line.
        asked: the names that were given on the command line.
        numbers: measurements of the whole run, by the names of their columns.
        aims: True if the time to a target is asked for.
        facts: what the settings leave open and yet changes results, as far as known: `cut`, `parameters`, `stages`
            and `epoch_samples`.
        provenance: `commit` and `host`.
        started_at: the date and time, in UTC; without a summary, when its settings were written.
        staleness: the largest of each stage's forwards.
        by_stage: measurements of every stage, by their names in the summary.
        curves: metric, throughput or `train_loss` -> its curve.
        lower_is_better: the metrics that fall as a model improves.
        losses: every training loss that was recorded.
        per_step: `samples`, `tokens` and `seconds` of a step, as far as known; seconds as those of points.
        seconds_of: number of steps -> their seconds, where steps of several phases take different times.
    """

    path: Path
    status: str
    reason: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    asked: Sequence[str] = ()
    final: Mapping[str, float] = field(default_factory=dict)
    best: Mapping[str, float] = field(default_factory=dict)
    numbers: Mapping[str, float] = field(default_factory=dict)
    aims: bool = False
    facts: Mapping[str, str] = field(default_factory=dict)
    provenance: Mapping[str, str] = field(default_factory=dict)
    started_at: str = ""
    staleness: Sequence[int] = ()
    by_stage: Mapping[str, Sequence[float]] = field(default_factory=dict)
    curves: Mapping[str, Curve] = field(default_factory=dict)
    lower_is_better: Collection[str] = ()
    losses: LossCurve = _NO_LOSSES
    per_step: Mapping[str, float] = field(default_factory=dict)
    seconds_of: Callable[[float], float] | None = None

    @cached_property
    def seeds(self) -> tuple[tuple[str, str], ...]:
        """Seeds of the run, by the names of their settings; a method's seed that is the run's own is left out."""
        named = {name: str(value) for name, value in self.settings.items() if is_seed(name)}
        own = named.get("seed")
        return tuple(sorted((name, seed) for name, seed in named.items() if name == "seed" or seed != own))

    def amount(self, name: str, steps: float) -> float:
        """What a number of first steps amount to: `steps`, or one of `per_step`."""
        if name == "seconds" and self.seconds_of:
            return self.seconds_of(steps)
        return steps * self.per_step.get(name, 1.0)

    @property
    def predicted(self) -> bool:
        """True if its times are those of the simulated pipeline."""
        return PREDICTED in self.numbers or self.seconds_of is not None

    @property
    def values(self) -> dict[str, float]:
        """Every number by the name of its column."""
        return {**self.final, **{f"best_{name}": value for name, value in self.best.items()}, **self.numbers}


def is_seed(setting: str) -> bool:
    """True if a setting is a seed of the run; the seed of a generated data set is not, as it makes other data."""
    parts = setting.split(".")
    return parts[-1] == "seed" and parts[0] != "dataset"


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
    content = summary.read(run) or {"status": "running" if owner_of(run.path) else "unfinished"}
    if content["status"] == "completed" and (missing := _OF_COMPLETED - content.keys()):
        raise ConfigError(f"{run.summary}: damaged: it has no {', '.join(sorted(missing))}")
    if not run.config.is_file():
        raise ConfigError(f"it has no {run.config.name}")
    words = (word.lstrip("+").partition("=") for word in run.overrides() if not word.startswith("~"))
    asked = {name: value for name, _, value in words if value != "null"}
    settings = _settings(run, content)
    began = datetime.fromtimestamp(run.config.stat().st_mtime, UTC).isoformat()
    # defaults for a run without a summary, which would have these
    content = {"executor": settings.get("executor.name"), "started_at": began, "lower_is_better": lower, **content}
    # one that holds several, such as train.target={top1: 80}, has a name for each there, whatever its spelling was
    several = {name: [each for each in settings if each.startswith(f"{name}.")] for name in asked.keys() - settings}
    named = [part for name in asked for part in several.get(name) or [name]]
    asked = {name: value for name, value in asked.items() if not several.get(name)}
    records = read_records(run)
    stages = content.get("per_stage", [])
    lower = lower_is_better(content["lower_is_better"])
    reached = _first_reaching(target, lower, records) if target else content.get("target") or {}
    per_step = _step_s(content, PREDICTED)
    numbers = {
        **{name: content.get(name) for name in _NUMBERS},
        **totals_of_stages(stages),
        "first_loss": next((record.get("loss") for record in records if record["kind"] == "interval"), None),
        "target_s": reached.get("wall_s"),
        "target_epochs": reached.get("epoch"),
        "predicted_target_s": per_step * reached["step"] if per_step and reached else None,
    }
    commit = str(content.get("git_commit") or "unknown")[:10] + ("+changes" if content.get("git_dirty") else "")
    return ComparedRun(
        run.path,
        content["status"],
        None if content.get("reason") is None else one_line(str(content["reason"])),
        {**asked, **settings},
        named,
        _finite(content.get("final", {})),
        _finite(content.get("best", {})),
        _finite(numbers),
        bool(target or content.get("target_metrics")),
        _facts(run, content, records),
        {"commit": commit, "host": str(content.get("host") or "unknown")},
        _in_utc(str(content["started_at"])),
        [max(map(int, stage.get("forward_staleness") or []), default=0) for stage in stages],
        _by_stage(stages),
        _curves(records, content),
        lower,
        _losses(records),
        _per_step(content),
    )


def _finite(numbers: Mapping[str, Any]) -> dict[str, float]:
    """The known numbers; a TypeError if one is no number."""
    return {name: value for name, value in numbers.items() if value is not None and math.fabs(value) < _LARGEST}


def _settings(run: RunDirectory, content: Mapping[str, Any]) -> dict[str, Any]:
    named = {name: content[name] for name in ("method", "schedule", "model", "dataset") if name in content}
    choices = content.get("choices") or run.choices() or named
    config = run.stored_values()
    return values_set(config, choices) | {"seed": content.get("seed", config.get("seed"))}


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
    ends = [record for record in records if record["kind"] == "epoch"]
    first = [record["samples"] for record in ends if record["epoch"] == 1 and "samples" in record]
    if first and (content["status"] == "completed" or ends[-1]["epoch"] > 1):  # else it may have ended in this epoch
        facts["epoch_samples"] = str(int(first[-1]))
    return facts


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
    """A date and time in UTC, as texts of different offsets do not sort; unchanged if it is none."""
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
    per_step, simulated = _step_s(content, PREDICTED), _simulated(content)

    def seconds(record: Record) -> float | None:
        """Measured, or, in a simulation, that of as many steps at the predicted throughput."""
        if not simulated:
            return _finite({WALL_S: record.get("wall_s")}).get(WALL_S)
        return None if per_step is None else per_step * record["step"]

    def point(record: Record, value: float) -> Point:
        return Point(float(record["epoch"]), value, record["step"], seconds(record))

    found: dict[str, Curve] = {}
    for record in records:
        points = metrics_of(record) if record["kind"] == "eval" else {}
        if record["kind"] == "epoch":
            points = {name: record[name] for name in ALL_THROUGHPUTS if name in record}
        for name, value in _finite(points).items():
            found.setdefault(name, []).append(point(record, value))
    intervals = [record for record in records if record["kind"] == "interval"]
    # of many losses the means over as many steps each, a power of two
    width = 1
    while max((record["step"] for record in intervals), default=0) > _MOST_LOSSES * width:
        width *= 2
    known = [record for record in intervals if _finite({TRAIN_LOSS: record.get("loss")})]
    for _, part in groupby(known, key=lambda record: (record["step"] - 1) // width):
        *_, last = binned = list(part)
        found.setdefault(TRAIN_LOSS, []).append(point(last, statistics.fmean(record["loss"] for record in binned)))
    return found


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
