"""The curves of a run: metrics, throughput and training loss, by epoch, step and time."""

import json
import math
import statistics
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from omegaconf import OmegaConf

from pipetrain.errors import ConfigError, one_line
from pipetrain.tracking import summary
from pipetrain.tracking.evaluations import lower_is_better, reaches
from pipetrain.tracking.hyperparameters import values_set
from pipetrain.tracking.records import Record, metrics_of, read_records
from pipetrain.tracking.run_directory import RunDirectory
from pipetrain.tracking.run_lock import owner_of
from pipetrain.tracking.summary import totals_of_stages
from pipetrain.tracking.throughput import ALL_THROUGHPUTS, PREDICTED

TRAIN_LOSS = "train_loss"
"""The curve of the training loss."""
EPOCH, STEP, WALL_S, PREDICTED_S = "epoch", "step", "wall_s", "predicted_s"
AXES = (EPOCH, STEP, WALL_S, PREDICTED_S)
"""Axes of curves; the time of a simulation is that predicted for its pipeline."""
_MOST_LOSSES = 100
_LARGEST = 1e100
"""Beyond it sums and squares may overflow; no measurement comes near."""


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


def finite(numbers: Mapping[str, Any]) -> dict[str, float]:
    """The numbers that there are.

    Raises:
        TypeError: one is no number.
    """
    return {name: value for name, value in numbers.items() if value is not None and math.fabs(value) < _LARGEST}


def curves(records: Sequence[Record], content: Mapping[str, Any]) -> dict[str, Curve]:
    """Metric, throughput or `train_loss` -> its curve.

    Args:
        records: of metrics.jsonl.
        content: of the summary.

    Raises:
        KeyError: a record lacks something.
        TypeError: something is no number.
    """
    seconds = _seconds(content)
    found: dict[str, Curve] = {}
    for record in records:
        points = metrics_of(record) if record["kind"] == "eval" else {}
        if record["kind"] == "epoch":
            points = {name: record[name] for name in ALL_THROUGHPUTS if name in record}
        for name, value in finite(points).items():
            found.setdefault(name, []).append(_point(record, value, seconds))
    losses = _losses([record for record in records if record["kind"] == "interval"], seconds)
    return found | ({TRAIN_LOSS: losses} if losses else {})


def _losses(intervals: Sequence[Record], seconds: Callable[[Record], float | None]) -> Curve:
    """The training loss; of many records the means over as many steps each, a power of two."""
    steps = max((record["step"] for record in intervals), default=0)
    width = 1
    while steps > _MOST_LOSSES * width:
        width *= 2
    parts: dict[int, list[Record]] = {}
    for record in intervals:
        if finite({TRAIN_LOSS: record.get("loss")}):
            parts.setdefault((record["step"] - 1) // width, []).append(record)
    means = [(part[-1], statistics.fmean(record["loss"] for record in part)) for part in parts.values()]
    return [_point(record, loss, seconds) for record, loss in means]


def _point(record: Record, value: float, seconds: Callable[[Record], float | None]) -> Point:
    return Point(float(record["epoch"]), value, record["step"], seconds(record))


def _seconds(content: Mapping[str, Any]) -> Callable[[Record], float | None]:
    """The time of a record: measured, or, in a simulation, that of as many samples at the predicted throughput."""
    if content.get("executor") != "simulated" and content.get(PREDICTED) is None:
        return lambda record: finite({"wall_s": record.get("wall_s")}).get("wall_s")
    per_step = predicted_step_s(content)
    return lambda record: None if per_step is None else per_step * record["step"]


def predicted_step_s(content: Mapping[str, Any]) -> float | None:
    """Seconds of a step of the pipeline that is simulated."""
    samples, steps, speed = (content.get(name) for name in ("samples", "steps", PREDICTED))
    return samples / steps / speed if samples and steps and speed else None


_NUMBERS = ("steps", "epochs", "wall_s", "train_s", "eval_s", *ALL_THROUGHPUTS)
_OF_STAGES = ("weight_bytes_peak", "activation_bytes_peak", "idle_share")
_OF_COMPLETED = {"method", "final", "best", "per_stage"}


@dataclass(frozen=True)
class ComparedRun:
    """Results of a run.

    Attributes:
        path: its directory.
        status: of its summary; `running` or `unfinished` where it has none, `damaged` where files cannot be read.
        reason: why it did not complete.
        settings: every value that was set, by its name on the command line.
        asked: the names that were given on the command line.
        final: metric -> value of the last evaluation.
        best: metric -> best value.
        lower_is_better: the metrics that fall as a model improves.
        numbers: what was measured of the whole run.
        aims: True if the time to some target is asked for.
        facts: what the settings leave open and yet changes results, as far as it is known: `cut`, `parameters`,
            `stages` and `epoch_samples`.
        provenance: `commit` and `host` that it ran with.
        started_at: the date and time, in UTC.
        staleness: of forwards, for each stage the largest seen.
        by_stage: what was measured of every stage, by its name in the summary.
        curves: metric, throughput or `train_loss` -> its course.
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

    @property
    def seeds(self) -> tuple[tuple[str, str], ...]:
        """Seeds of the run, by the names of their settings."""
        return tuple(sorted((name, str(value)) for name, value in self.settings.items() if is_seed(name)))

    @property
    def predicted(self) -> bool:
        """True if its times are those of the simulated pipeline."""
        return PREDICTED in self.numbers

    @property
    def values(self) -> dict[str, float]:
        """Every number by the name of its column."""
        return {**self.final, **{f"best_{name}": value for name, value in self.best.items()}, **self.numbers}


def is_seed(setting: str) -> bool:
    """True if a setting is a seed of the run; the seed of a generated data set is not, as it makes other data."""
    parts = setting.split(".")
    return parts[-1] == "seed" and parts[0] != "dataset"


def read(run: RunDirectory, target: Mapping[str, float]) -> ComparedRun:
    """The run of a directory; `target` are metrics whose time is asked for, else that of the run's own target is."""
    try:
        return _read(run, target)
    except KeyError as error:
        reason = f"{error} is missing in its summary or in one of its records"
    except RecursionError:
        reason = "one of its files is nested too deeply"
    except Exception as error:  # whatever a damaged file makes of those that read it
        reason = one_line(error) or type(error).__name__
    return ComparedRun(run.path, "damaged", reason)


def _read(run: RunDirectory, target: Mapping[str, float]) -> ComparedRun:
    """As `read`.

    Raises:
        ConfigError: a file cannot be read, or lacks something.
    """
    content = summary.read(run) or {"status": "running" if owner_of(run.path) else "unfinished"}
    if content["status"] == "completed" and (missing := _OF_COMPLETED - content.keys()):
        raise ConfigError(f"{run.summary}: damaged: it has no {', '.join(sorted(missing))}")
    if not run.config.is_file():
        raise ConfigError(f"it has no {run.config.name}")
    asked = _asked(run)
    records = read_records(run)
    stages = content.get("per_stage", [])
    settings = {**asked, **_settings(run, content)}
    lower = lower_is_better(content.get("lower_is_better", ()))
    reached = _first(target, lower, records) if target else content.get("target") or {}
    numbers = {name: content.get(name) for name in _NUMBERS} | totals_of_stages(stages)
    return ComparedRun(
        run.path,
        content["status"],
        None if content.get("reason") is None else one_line(str(content["reason"])),
        settings,
        list(asked),
        finite(content.get("final", {})),
        finite(content.get("best", {})),
        finite(numbers | _first_loss(records) | _to_target(reached, content)),
        bool(target or content.get("target_metrics")),
        _facts(run, content, records),
        _provenance(content),
        _in_utc(str(content.get("started_at", ""))),
        [max(map(int, stage.get("forward_staleness") or []), default=0) for stage in stages],
        _by_stage(stages),
        curves(records, content),
        lower,
    )


def _by_stage(stages: Sequence[Mapping[str, Any]]) -> dict[str, list[float]]:
    """The numbers that all stages have."""
    measured = {name: [finite({name: stage.get(name)}) for stage in stages] for name in _OF_STAGES}
    return {name: [stage[name] for stage in found] for name, found in measured.items() if found and all(found)}


def _facts(run: RunDirectory, content: Mapping[str, Any], records: Sequence[Record]) -> dict[str, str]:
    """Facts that the settings leave open: cut points, number of parameters, samples per epoch.

    Settings alone do not tell them where a plan comes from a file or from a measurement, and where a model or data of
    one name has changed.
    """
    facts = {}
    if run.plan.is_file():
        facts = _planned(run.plan)
    if stages := content.get("per_stage"):
        facts["stages"] = str(len(stages))
    ends = [record for record in records if record["kind"] == "epoch"]
    first = [record["samples"] for record in ends if record["epoch"] == 1 and "samples" in record]
    if first and (content["status"] == "completed" or ends[-1]["epoch"] > 1):  # else it may have ended in this epoch
        facts["epoch_samples"] = str(int(first[-1]))
    return facts


def _planned(path: Path) -> dict[str, str]:
    """Facts from plan.json.

    Raises:
        ConfigError: it is damaged.
    """
    try:
        plan = json.loads(path.read_text(encoding="utf-8"))
        return {"cut": _cut(plan), "parameters": str(int(plan["parameters"]))}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{path}: damaged: {one_line(error)}") from error


def _cut(plan: Mapping[str, Any]) -> str:
    """The first layer of every stage, such as `0,2`, and the replicas of the stages if any has several."""
    first = ",".join(str(int(stage["first"])) for stage in plan["stages"])
    replicas = [int(each) for each in plan.get("replicas") or ()]
    return f"{first} replicas={','.join(map(str, replicas))}" if any(each > 1 for each in replicas) else first


def _in_utc(moment: str) -> str:
    """A date and time in UTC, as those of different offsets do not sort as text; unchanged where it is none."""
    try:
        return datetime.fromisoformat(moment).astimezone(UTC).isoformat()
    except ValueError:
        return moment


def _provenance(content: Mapping[str, Any]) -> dict[str, str]:
    commit = str(content.get("git_commit") or "unknown")[:10]
    changed = "+changes" if content.get("git_dirty") else ""
    return {"commit": f"{commit}{changed}", "host": str(content.get("host") or "unknown")}


def _asked(run: RunDirectory) -> dict[str, str]:
    """Overrides of the command line, setting -> value, without nulls."""
    words = (word.lstrip("+").partition("=") for word in run.overrides() if not word.startswith("~"))
    return {name: value for name, _, value in words if value != "null"}


def _settings(run: RunDirectory, content: Mapping[str, Any]) -> dict[str, Any]:
    named = {name: content[name] for name in ("method", "schedule", "model", "dataset") if name in content}
    choices = content.get("choices") or run.choices() or named
    config: Any = OmegaConf.to_container(run.stored_config())
    return values_set(config, choices) | {"seed": content.get("seed", config.get("seed"))}


def _to_target(reached: Mapping[str, Any], content: Mapping[str, Any]) -> dict[str, Any]:
    """Seconds and epochs to the target; of a simulation also the seconds that its pipeline would have taken."""
    found = {"target_s": reached.get("wall_s"), "target_epochs": reached.get("epoch")}
    per_step = predicted_step_s(content)
    return found | ({"predicted_target_s": per_step * reached["step"]} if per_step and reached else {})


def _first_loss(records: Sequence[Record]) -> dict[str, Any]:
    """The loss of the first steps that were recorded."""
    return {"first_loss": next((record.get("loss") for record in records if record["kind"] == "interval"), None)}


def _first(target: Mapping[str, float], lower: Collection[str], records: Sequence[Record]) -> Record:
    """The first evaluation that reached all metrics of the target; empty where none did."""
    for record in records:
        metrics = metrics_of(record) if record["kind"] == "eval" else {}
        reached = (
            name in metrics and reaches(metrics[name], wanted, lower=name in lower) for name, wanted in target.items()
        )
        if all(reached):
            return record
    return {}
