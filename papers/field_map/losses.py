"""The map of the field: losses of every method against the depth of the pipeline, and which are like plain training."""

import csv
import math
import statistics
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from papers.field_map.grid import Grid, MapRun, Place, measured, planned
from papers.targets import FULL, SMALL
from pipetrain.report.seed_statistics import Interval, Values, choose, ratio, verdict

NEAR = 1.05
"""Largest ratio to plain training's loss at which a loss counts as like it."""


class Reading(Enum):
    """Result of the test that a loss is like plain training's."""

    SUPPORTED = "supported"
    REFUTED = "refuted"
    UNDECIDED = "undecided"


def reading_of(found: Interval) -> Reading:
    """What the ratio of a loss to plain training's says."""
    holds = verdict(found, high=NEAR).holds
    return Reading.UNDECIDED if holds is None else Reading.SUPPORTED if holds else Reading.REFUTED


NAME = "map"
NETWORKS = {"conv": "Convolution net", "transformer": "Transformer", "gpt": "`gpt`"}
"""The presets, and what they train."""
_PARTS = ("pipemare", "hybrid", "2bw")
"""Last words of the presets in addition to a network's own: methods that take other settings or other depths."""
PLAIN = "naive_async"
"""The method that in a pipeline of one stage is plain training."""
_FIRST = 0
"""The seed by which learning rates are chosen."""
ENDED = ("completed", "diverged")
"""Ends of a run that count as a result."""
Row = Mapping[str, str]
"""A run, by the columns of `runs.csv`."""
Tried = Mapping[float, Values]
"""Learning rate -> seed -> loss, of one method at one depth."""


@dataclass(frozen=True)
class Loss:
    """The final loss of one method at one depth, with the learning rate of the grid that is best there.

    Attributes:
        rate: the learning rate.
        rates: how many were tried.
        median: over seeds, which one evaluation out of line does not move; infinite where a run diverged.
        deviation: sample standard deviation over seeds; None of fewer than two.
        losses: seed -> its loss; infinite where the run diverged.
    """

    rate: float
    rates: int
    median: float
    deviation: float | None
    losses: Values

    @property
    def seeds(self) -> int:
        """Number of seeds."""
        return len(self.losses)


@dataclass(frozen=True)
class FieldMap:
    """Measurements on one network.

    Attributes:
        network: the preset's first word.
        scale: `small` or `full`.
        dataset: what it was trained on.
        planned: all runs that there are to be.
        measured: those that there are so far.
        losses: (method, depth) -> final loss.
    """

    network: str
    scale: str
    dataset: str
    planned: Grid
    measured: Grid
    losses: Mapping[Place, Loss]

    @property
    def methods(self) -> list[str]:
        """In alphabetical order, but the control first."""
        return sorted({method for method, _ in self.losses}, key=lambda name: (name != PLAIN, name))

    @property
    def depths(self) -> list[int]:
        """Measured depths, ascending."""
        return sorted({depth for _, depth in self.losses})

    def depths_of(self, method: str) -> list[int]:
        """Depths at which a method was measured, ascending."""
        return [depth for depth in self.depths if (method, depth) in self.losses]

    def best(self, depth: int) -> str | None:
        """The method with the least loss at a depth; None if all diverged."""
        found = {method: loss.median for (method, at), loss in self.losses.items() if at == depth}
        name = min(found, key=lambda each: found[each], default=None)
        return name if name and math.isfinite(found[name]) else None

    @property
    def plain(self) -> Loss | None:
        """The loss of plain training."""
        return self.losses.get((PLAIN, 1))

    def to_plain(self, method: str, depth: int) -> Interval | None:
        """The ratio of a method's median loss to plain training's; None if either was not measured."""
        found = self.losses.get((method, depth))
        if found is None or self.plain is None:
            return None
        # as independent samples: three pairs would leave two degrees of freedom
        plain = {(PLAIN, seed): loss for seed, loss in self.plain.losses.items()}
        return ratio(found.losses, plain, statistics.median)

    def depths_that(self, method: str, reading: Reading) -> list[int]:
        """The depths above 1 at which a method's losses are read so, ascending."""
        found = {depth: self.to_plain(method, depth) for depth in self.depths_of(method) if depth > 1}
        return [depth for depth, each in found.items() if each and reading_of(each) is reading]

    @property
    def first_seed_gain(self) -> float | None:
        """By how much the losses of the seed that chose the rates are below those of the others, on average."""
        logs = [
            math.log(loss.losses[_FIRST]) - statistics.fmean(map(math.log, others))
            for loss in self.losses.values()
            if _FIRST in loss.losses and (others := [value for seed, value in loss.losses.items() if seed != _FIRST])
            if all(map(math.isfinite, loss.losses.values()))
        ]
        return 1 - math.exp(statistics.fmean(logs)) if logs else None


def maps_of(results: Path) -> list[FieldMap]:
    """The maps of all networks that were measured, the full scale before the small one."""
    found = []
    for network in NETWORKS:
        for scale in (FULL, SMALL):
            presets = [f"{NAME}/{network}", *(f"{NAME}/{network}_{part}" for part in _PARTS)]
            rows = ended_runs(results / name / scale / "runs.csv" for name in presets)
            if rows:
                found.append(_map(network, scale, planned(presets, scale), rows))
                break
    return found


def best_rates(rows: Sequence[Row]) -> Mapping[Place, float]:
    """The learning rate that is best for each method at each depth."""
    return {place: choose(rates).value for place, rates in _tried(rows).items()}


def _map(network: str, scale: str, grid: Grid, rows: Sequence[Row]) -> FieldMap:
    dataset = ", ".join(sorted({row["dataset"] for row in rows}))
    losses = {place: _best(rates) for place, rates in _tried(rows).items()}
    return FieldMap(network, scale, dataset, grid, measured(rows), losses)


def ended_runs(paths: Iterable[Path]) -> list[Row]:
    """The rows of all these `runs.csv`, as far as they exist, of runs that completed or diverged."""
    found: list[Row] = []
    for path in filter(Path.is_file, paths):
        with path.open(encoding="utf-8", newline="") as file:
            found += [row for row in csv.DictReader(file) if row["status"] in ENDED]
    return found


def _tried(rows: Sequence[Row]) -> Mapping[Place, Tried]:
    losses: dict[Place, dict[float, dict[Hashable, float]]] = {}
    for row in rows:
        run = MapRun.of(row)
        losses.setdefault((run.method, run.depth), {}).setdefault(run.rate, {})[run.seed] = _loss(row)
    return losses


def _best(rates: Tried) -> Loss:
    rate = choose(rates).value
    losses = rates[rate]
    finite = all(map(math.isfinite, losses.values()))
    median = statistics.median(losses.values()) if finite else math.inf
    deviation = statistics.stdev(losses.values()) if len(losses) > 1 and finite else None
    return Loss(rate, len(rates), median, deviation, losses)


def _loss(row: Row) -> float:
    # a run whose losses are finite may still end with an evaluation that overflows, which has no number
    return float(row["loss"]) if row["status"] == "completed" and row["loss"] else math.inf
