"""The map of the field: losses of every method against the depth of the pipeline, and which are like plain training."""

import csv
import itertools
import math
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from papers.field_map.grid import Grid, MapRun, Place, measured, planned
from papers.targets import FULL, SMALL
from pipetrain.report.sweep.interval import sample_of, unpaired

NEAR = 1.05
"""Largest ratio to plain training's loss at which a loss counts as like it."""
_TAIL = 0.025


class Reading(Enum):
    """Result of the test that a loss is like plain training's."""

    SUPPORTED = "supported"
    REFUTED = "refuted"
    UNDECIDED = "undecided"


@dataclass(frozen=True)
class Likeness:
    """The ratio of two median losses, with its 95 % interval.

    Attributes:
        low, high: the ends, by the bootstrap; infinite where runs diverged.
        reading: what they say.
    """

    low: float
    high: float
    reading: Reading


def likeness(losses: Sequence[float], plain: Sequence[float]) -> Likeness:
    """Comparison of the losses of some seeds with plain training's losses.

    With three seeds the bootstrap of medians covers less than 95 %; Welch's t interval of the logarithms has to agree.

    Args:
        losses: one for each seed; infinite of a run that diverged.
        plain: those of plain training.
    """
    if not all(map(math.isfinite, (*losses, *plain))):
        lost = len(losses) > 1 and all(map(math.isfinite, plain)) and not any(map(math.isfinite, losses))
        return Likeness(math.inf, math.inf, Reading.REFUTED if lost else Reading.UNDECIDED)
    low, high = _bootstrapped(losses, plain)
    if min(len(losses), len(plain)) < 2:
        return Likeness(low, high, Reading.UNDECIDED)
    logs = unpaired(*(sample_of([math.log(loss) for loss in each]) for each in (losses, plain)))
    if max(math.log(high), logs.high) <= math.log(NEAR):
        return Likeness(low, high, Reading.SUPPORTED)
    beyond = min(math.log(low), logs.low) > math.log(NEAR)
    return Likeness(low, high, Reading.REFUTED if beyond else Reading.UNDECIDED)


def _bootstrapped(losses: Sequence[float], plain: Sequence[float]) -> tuple[float, float]:
    """The ends of the middle 95 % of the ratio of medians, over all resamples of both."""
    counts = Counter[float]()
    for (first, times), (other, as_often) in itertools.product(_medians(losses).items(), _medians(plain).items()):
        counts[first / other] += times * as_often
    return _quantile(counts, _TAIL), _quantile(counts, 1 - _TAIL)


def _medians(values: Sequence[float]) -> Counter[float]:
    """Median of a resample -> how many of all resamples have it."""
    counts = Counter[float]()
    for picked in itertools.combinations_with_replacement(range(len(values)), len(values)):
        ways = math.factorial(len(values)) // math.prod(map(math.factorial, Counter(picked).values()))
        counts[statistics.median(values[index] for index in picked)] += ways
    return counts


def _quantile(counts: Counter[float], share: float) -> float:
    """The least value that such a share of all is not above."""
    left = share * counts.total()
    for value in sorted(counts):
        left -= counts[value]
        if left <= 0:
            return value
    return max(counts)


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
Tried = Mapping[float, Mapping[int, Row]]
"""Learning rate -> seed -> its run, of one method at one depth."""


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
    losses: Mapping[int, float]

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

    def likeness(self, method: str, depth: int) -> Likeness | None:
        """Comparison of a method's losses with plain training's; None if either was not measured."""
        found = self.losses.get((method, depth))
        if found is None or self.plain is None:
            return None
        return likeness([*found.losses.values()], [*self.plain.losses.values()])

    def depths_that(self, method: str, reading: Reading) -> list[int]:
        """The depths above 1 at which a method's losses are read so, ascending."""
        found = {depth: self.likeness(method, depth) for depth in self.depths_of(method) if depth > 1}
        return [depth for depth, like in found.items() if like and like.reading is reading]

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
    return {place: _best_rate(rates) for place, rates in _tried(rows).items()}


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
    runs: dict[Place, dict[float, dict[int, Row]]] = {}
    for row in rows:
        run = MapRun.of(row)
        runs.setdefault((run.method, run.depth), {}).setdefault(run.rate, {})[run.seed] = row
    return runs


def _best(rates: Tried) -> Loss:
    rate = _best_rate(rates)
    losses = {seed: _loss(row) for seed, row in sorted(rates[rate].items())}
    finite = all(map(math.isfinite, losses.values()))
    median = statistics.median(losses.values()) if finite else math.inf
    deviation = statistics.stdev(losses.values()) if len(losses) > 1 and finite else None
    return Loss(rate, len(rates), median, deviation, losses)


def _best_rate(rates: Tried) -> float:
    """The one with the least loss over the seeds which all rates have been tried with."""
    common = set.intersection(*(set(rows) for rows in rates.values()))
    return min(rates, key=lambda each: statistics.fmean(_loss(rates[each][seed]) for seed in common or rates[each]))


def _loss(row: Row) -> float:
    # a run whose losses are finite may still end with an evaluation that overflows, which has no number
    return float(row["loss"]) if row["status"] == "completed" and row["loss"] else math.inf
