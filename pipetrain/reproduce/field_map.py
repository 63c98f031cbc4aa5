"""The map of the field: final loss against depth for every method, and which methods a depth leaves."""

import csv
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pipetrain.reproduce.map_grid import Grid, MapRun, Place, measured, planned
from pipetrain.reproduce.targets import FULL, SMALL

NAME = "map"
NETWORKS = {"conv": "Convolution net", "transformer": "Transformer", "gpt": "`gpt`"}
"""The presets, and what they train."""
_PARTS = ("pipemare", "hybrid", "2bw")
"""Last words of the presets beside a network's own: methods that take other settings or other depths."""
PLAIN = "naive_async"
"""The method that in a pipeline of one stage is plain training."""
NEAR = 1.05
"""A loss up to so many times that of plain training is like it."""
ENDED = ("completed", "diverged")
"""How a run ends that is a result."""
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
        seeds: how many there are.
    """

    rate: float
    rates: int
    median: float
    deviation: float | None
    seeds: int


@dataclass(frozen=True)
class FieldMap:
    """What was measured on one network.

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
        """Ascending."""
        return sorted({depth for _, depth in self.losses})

    def depths_of(self, method: str) -> list[int]:
        """Those at which a method was measured, ascending."""
        return [depth for depth in self.depths if (method, depth) in self.losses]

    def best(self, depth: int) -> str | None:
        """The method with the least loss at a depth; None where all diverged."""
        found = {method: loss.median for (method, at), loss in self.losses.items() if at == depth}
        name = min(found, key=lambda each: found[each], default=None)
        return name if name and math.isfinite(found[name]) else None

    @property
    def plain(self) -> Loss | None:
        """The loss of plain training."""
        return self.losses.get((PLAIN, 1))

    def like_plain(self, method: str, depth: int) -> bool | None:
        """Whether a method's loss is like plain training's; None where either was not measured."""
        found = self.losses.get((method, depth))
        return None if found is None or self.plain is None else found.median <= NEAR * self.plain.median

    def like_at(self, method: str) -> list[int]:
        """The measured depths at which a method is like plain training, ascending."""
        return [depth for depth in self.depths_of(method) if self.like_plain(method, depth)]

    def gaps(self, method: str) -> list[int]:
        """The measured depths at which a method is not like plain training, though it is at a deeper one."""
        last = max(self.like_at(method), default=0)
        return [depth for depth in self.depths_of(method) if depth < last and not self.like_plain(method, depth)]

    def falls_behind(self, method: str) -> int | None:
        """The least measured depth from which on a method is never like plain training; None where there is none."""
        if self.plain is None:
            return None
        last = max(self.like_at(method), default=0)
        return next((depth for depth in self.depths_of(method) if depth > last), None)

    def next_planned(self, depth: int) -> int | None:
        """The next depth of the grid, measured or not; None behind the last."""
        return min((each for each in self.planned.depths if each > depth), default=None)

    def holds_to(self, method: str) -> int | None:
        """The largest measured depth at which a method is like plain training; None where there is none."""
        return max(self.like_at(method), default=None)


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
    losses = [_loss(row) for row in rates[rate].values()]
    finite = all(map(math.isfinite, losses))
    median = statistics.median(losses) if finite else math.inf
    deviation = statistics.stdev(losses) if len(losses) > 1 and finite else None
    return Loss(rate, len(rates), median, deviation, len(losses))


def _best_rate(rates: Tried) -> float:
    """The one with the least loss over the seeds which all rates have been tried with."""
    common = set.intersection(*(set(rows) for rows in rates.values()))
    return min(rates, key=lambda each: statistics.fmean(_loss(rates[each][seed]) for seed in common or rates[each]))


def _loss(row: Row) -> float:
    # a run whose losses are finite may still end with an evaluation that overflows, which has no number
    return float(row["loss"]) if row["status"] == "completed" and row["loss"] else math.inf
