"""What one run came to, as numbers that can be compared."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from pipetrain.errors import ConfigError, one_line
from pipetrain.tracking import metrics_file, summary
from pipetrain.tracking.all_stages import of_all_stages
from pipetrain.tracking.evaluations import reaches
from pipetrain.tracking.hyperparameters import values_set
from pipetrain.tracking.records import Record, metrics_of
from pipetrain.tracking.run_directory import RunDirectory
from pipetrain.tracking.run_lock import owner_of
from pipetrain.tracking.throughput import ALL_THROUGHPUTS, PREDICTED

Curve = list[tuple[float, float]]
"""(epoch, value), in the order of epochs."""
_NUMBERS = ("steps", "epochs", "wall_s", "train_s", "eval_s", *ALL_THROUGHPUTS)
_OF_STAGES = ("weight_bytes_peak", "activation_bytes_peak", "idle_share")
_OF_COMPLETED = {"method", "final", "best", "per_stage"}


@dataclass(frozen=True)
class ComparedRun:
    """What one run came to.

    Attributes:
        path: its directory.
        status: of its summary; `running` or `unfinished` where it has none, `damaged` where files cannot be read.
        reason: why it did not complete.
        settings: every value that was set, by its name on the command line.
        asked: the names that were given on the command line.
        final: metric -> value of the last evaluation.
        best: metric -> best value.
        numbers: what was measured of the whole run.
        aims: whether the time to some target is asked for.
        staleness: of forwards, for each stage the largest seen.
        by_stage: what was measured of every stage, by its name in the summary.
        curves: metric or throughput -> its course.
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
    staleness: Sequence[int] = ()
    by_stage: Mapping[str, Sequence[float]] = field(default_factory=dict)
    curves: Mapping[str, Curve] = field(default_factory=dict)

    @property
    def values(self) -> dict[str, float]:
        """Every number by the name of its column."""
        return {**self.final, **{f"best_{name}": value for name, value in self.best.items()}, **self.numbers}


def read(run: RunDirectory, target: Mapping[str, float]) -> ComparedRun:
    """The run of a directory; `target` are metrics whose time is asked for, else that of the run's own target is."""
    try:
        return _read(run, target)
    except KeyError as error:
        return ComparedRun(run.path, "damaged", f"{error} is missing in its summary or in one of its records")
    except (ConfigError, TypeError, ValueError, AttributeError) as error:
        return ComparedRun(run.path, "damaged", one_line(error))


def _read(run: RunDirectory, target: Mapping[str, float]) -> ComparedRun:
    """As `read`.

    Raises:
        ConfigError: a file cannot be read, or lacks something.
    """
    content = summary.read(run) or {"status": "running" if owner_of(run.path) else "unfinished"}
    if content["status"] == "completed" and (missing := _OF_COMPLETED - content.keys()):
        raise ConfigError(f"{run.summary}: damaged: it has no {', '.join(sorted(missing))}")
    asked = _asked(run)
    records = metrics_file.read(run)
    stages = content.get("per_stage", [])
    settings = {**asked, **_settings(run, content)}
    reached = _first(target, records) if target else content.get("target") or {}
    numbers = {name: content.get(name) for name in _NUMBERS} | of_all_stages(stages)
    return ComparedRun(
        run.path,
        content["status"],
        content.get("reason"),
        settings,
        list(asked),
        _finite(content.get("final", {})),
        _finite(content.get("best", {})),
        _finite(numbers | _first_loss(records) | _to_target(reached, settings, content)),
        bool(target or content.get("target_metrics")),
        [max(stage.get("forward_staleness") or [], default=0) for stage in stages],
        _by_stage(stages),
        _curves(records),
    )


def _by_stage(stages: Sequence[Mapping[str, Any]]) -> dict[str, list[float]]:
    """The numbers that all stages have."""
    measured: dict[str, list[Any]] = {name: [stage.get(name) for stage in stages] for name in _OF_STAGES}
    return {name: values for name, values in measured.items() if values and None not in values}


def _asked(run: RunDirectory) -> dict[str, str]:
    """What the run was started with: setting -> value."""
    words = (word.lstrip("+").partition("=") for word in run.overrides() if not word.startswith("~"))
    return {name: value for name, _, value in words}


def _settings(run: RunDirectory, content: Mapping[str, Any]) -> dict[str, Any]:
    named = {name: content[name] for name in ("method", "schedule", "model", "dataset") if name in content}
    choices = content.get("choices") or named
    config: Any = OmegaConf.to_container(run.stored_config()) if run.config.is_file() else {}
    return values_set(config, choices) | {"seed": content.get("seed", config.get("seed"))}


def _to_target(reached: Mapping[str, Any], settings: Mapping[str, Any], content: Mapping[str, Any]) -> dict[str, Any]:
    """Seconds and epochs to the target; of a simulation also the seconds that its pipeline would have taken."""
    found = {"target_s": reached.get("wall_s"), "target_epochs": reached.get("epoch")}
    samples = reached.get("step", 0) * (settings.get("train.batch_size") or 0)
    speed = content.get(PREDICTED)
    return found | ({"predicted_target_s": samples / speed} if samples and speed else {})


def _first_loss(records: Sequence[Record]) -> dict[str, Any]:
    """The loss of the first steps that were recorded."""
    return {"first_loss": next((record.get("loss") for record in records if record["kind"] == "interval"), None)}


def _first(target: Mapping[str, float], records: Sequence[Record]) -> Record:
    """The first evaluation that reached all metrics of the target; empty where none did."""
    for record in records:
        metrics = metrics_of(record) if record["kind"] == "eval" else {}
        if all(name in metrics and reaches(name, metrics[name], wanted) for name, wanted in target.items()):
            return record
    return {}


def _finite(numbers: Mapping[str, Any]) -> dict[str, float]:
    return {name: value for name, value in numbers.items() if value is not None and math.isfinite(value)}


def _curves(records: Sequence[Record]) -> dict[str, Curve]:
    curves: dict[str, Curve] = {}
    for record in records:
        points = metrics_of(record) if record["kind"] == "eval" else {}
        if record["kind"] == "epoch":
            points = {name: record[name] for name in ALL_THROUGHPUTS if name in record}
        for name, value in _finite(points).items():
            curves.setdefault(name, []).append((record["epoch"], value))
    return curves
