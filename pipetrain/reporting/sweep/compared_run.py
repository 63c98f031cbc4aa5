"""A run as reports compare it: its settings, results and curves."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from pipetrain.reporting.steps_to_loss import LossCurve
from pipetrain.runner.tracking.throughput import PREDICTED

TRAIN_LOSS = "train_loss"
"""The curve of the training loss."""
EPOCH, STEP, WALL_S, PREDICTED_S = "epoch", "step", "wall_s", "predicted_s"
AXES = (EPOCH, STEP, WALL_S, PREDICTED_S)
"""Axes of curves; the time of a simulation is that predicted for its pipeline."""


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
        per_step: `samples`, `tokens` and `seconds` of a step, as far as known; seconds are measured or, in a
            simulation, predicted.
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
        """True if its times are predicted."""
        return PREDICTED in self.numbers or self.seconds_of is not None

    @property
    def values(self) -> dict[str, float]:
        """Every number by the name of its column."""
        return {**self.final, **{f"best_{name}": value for name, value in self.best.items()}, **self.numbers}


def is_seed(setting: str) -> bool:
    """True if a setting is a seed of the run; the seed of a generated data set is not, as it makes other data."""
    parts = setting.split(".")
    return parts[-1] == "seed" and parts[0] != "dataset"
