"""The map of the field: final loss against depth for every method, and which methods a depth leaves."""

import csv
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pipetrain.reproduce.targets import FULL, SMALL

NAME = "map"
NETWORKS = {"conv": "convolution net", "transformer": "Transformer", "gpt": "gpt"}
"""The presets, and what they train."""
_PARTS = ("pipemare", "hybrid", "2bw")
"""Last words of the presets beside a network's own: methods that take other settings or other depths."""
PLAIN = "naive_async"
"""The method that in a pipeline of one stage is plain training."""
_NEAR = 1.05
"""A loss up to so many times that of plain training is like it."""


@dataclass(frozen=True)
class Loss:
    """The final loss of one method at one depth, with the learning rate of the grid that is best there.

    Attributes:
        rate: the learning rate.
        rates: how many were tried.
        mean: over seeds; infinite where a run diverged under every learning rate.
        deviation: sample standard deviation over seeds; None of fewer than two.
        seeds: how many there are.
    """

    rate: float
    rates: int
    mean: float
    deviation: float | None
    seeds: int


@dataclass(frozen=True)
class FieldMap:
    """What was measured on one network.

    Attributes:
        network: the preset's first word.
        scale: `small` or `full`.
        dataset: what it was trained on.
        runs: how many there are so far.
        losses: (method, depth) -> final loss.
    """

    network: str
    scale: str
    dataset: str
    runs: int
    losses: Mapping[tuple[str, int], Loss]

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

    @property
    def plain(self) -> Loss | None:
        """The loss of plain training."""
        return self.losses.get((PLAIN, 1))

    def like_plain(self, method: str, depth: int) -> bool | None:
        """Whether a method's loss is like plain training's; None where either was not measured."""
        found = self.losses.get((method, depth))
        return None if found is None or self.plain is None else found.mean <= _NEAR * self.plain.mean

    def falls_behind(self, method: str) -> int | None:
        """The least measured depth at which a method is no longer like plain training; None where there is none."""
        return next((depth for depth in self.depths if self.like_plain(method, depth) is False), None)

    def holds_to(self, method: str) -> int | None:
        """The largest measured depth up to which a method is like plain training; None where there is none."""
        behind = self.falls_behind(method)
        return max((depth for depth in self.depths_of(method) if behind is None or depth < behind), default=None)


def maps_of(results: Path) -> list[FieldMap]:
    """The maps of all networks that were measured, the full scale before the small one."""
    found = []
    for network in NETWORKS:
        for scale in (FULL, SMALL):
            names = [network, *(f"{network}_{part}" for part in _PARTS)]
            paths = [path for name in names if (path := results / NAME / name / scale / "runs.csv").is_file()]
            if paths:
                found.append(_map(network, scale, paths))
                break
    return found


def _map(network: str, scale: str, paths: Sequence[Path]) -> FieldMap:
    runs: dict[tuple[str, int], dict[float, dict[str, float]]] = {}
    rows = _rows(paths)
    for row in rows:
        rates = runs.setdefault((row["method"], int(row["partition.stages"])), {})
        loss = float(row["loss"]) if row["status"] == "completed" else math.inf
        rates.setdefault(float(row["optimizer.lr"]), {})[row["seed"]] = loss
    dataset = ", ".join(sorted({row["dataset"] for row in rows}))
    return FieldMap(network, scale, dataset, len(rows), {place: _best(rates) for place, rates in runs.items()})


def _rows(paths: Iterable[Path]) -> list[Mapping[str, str]]:
    found: list[Mapping[str, str]] = []
    for path in paths:
        with path.open(encoding="utf-8", newline="") as file:
            found += [row for row in csv.DictReader(file) if row["status"] in ("completed", "diverged")]
    return found


def _best(rates: Mapping[float, Mapping[str, float]]) -> Loss:
    """That of the rate that is best over the seeds which all rates have been tried with."""
    common = set.intersection(*(set(losses) for losses in rates.values()))
    rate = min(rates, key=lambda each: statistics.fmean(rates[each][seed] for seed in common or rates[each]))
    losses = list(rates[rate].values())
    mean = statistics.fmean(losses)
    deviation = statistics.stdev(losses) if len(losses) > 1 and math.isfinite(mean) else None
    return Loss(rate, len(rates), mean, deviation, len(losses))
