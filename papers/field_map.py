"""The map of the field: how deep a pipeline can be before stale weights hurt, by method and network."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from papers.compared import compared_runs
from papers.kept_runs import Row
from papers.lines import STAGES, Line
from papers.targets import FULL, SMALL, ReproductionTarget
from pipetrain.reporting.seed_statistics import Interval, verdict

NAME = "map"
NETWORKS = {"conv": "Convolution net", "transformer": "Transformer", "gpt": "`gpt`"}
"""The presets, and what they train."""
PLAIN = "naive_async"
"""The method that in a pipeline of one stage is plain training."""
NEAR = 1.05
"""Largest ratio to plain training's loss at which a loss counts as like it."""
HYBRIDS = {"stale_hybrid": 0.5, "pipemare_w": 0.5}
"""Methods that begin or end without a pipeline -> the share of their steps that are synchronous, as the presets are."""
_DELAYED, _DELAY = "delayed", "method.delay"
_NAMED = ("optimizer", "optimizer.lr_by_delay", "optimizer.error_feedback", "optimizer.momentum")
"""Settings of a round that its lines are named for."""


class Reading(Enum):
    """Result of the test that a loss is like plain training's."""

    SUPPORTED = "supported"
    REFUTED = "refuted"
    UNDECIDED = "undecided"


def reading_of(found: Interval) -> Reading:
    """Verdict on a loss, from the interval of its ratio to that of plain training."""
    holds = verdict(found, high=NEAR).holds
    return Reading.UNDECIDED if holds is None else Reading.SUPPORTED if holds else Reading.REFUTED


@dataclass(frozen=True)
class FieldMap:
    """Measurements on one network.

    Attributes:
        target: the preset, at a scale.
        dataset: what it was trained on.
        lines: methods in pipelines, plain asynchrony first.
        hybrids: methods that are synchronous for part of their steps.
        delayed: optimizers under a chosen delay of all weights, by the delay.
        tried: rate -> plain training. That with the least mean loss is the reference, and stands in all lines.
        runs: number of reported runs.
        missing: number of rounds that have not run.
    """

    target: ReproductionTarget
    dataset: str
    lines: Sequence[Line]
    hybrids: Sequence[Line]
    delayed: Sequence[Line]
    tried: Mapping[float, Line]
    runs: int
    missing: int

    @property
    def network(self) -> str:
        """The last word of its preset."""
        return self.target.experiment.rpartition("/")[2]

    @property
    def title(self) -> str:
        """Its network and its data."""
        return f"{NETWORKS[self.network]} on {self.dataset}"

    @property
    def plain(self) -> Line | None:
        """Plain asynchrony; None without plain training, which it is with one stage."""
        return next((line for line in self.lines if line.name == PLAIN and 1 in line.depths), None)

    def to_plain(self, line: Line, depth: int) -> Interval | None:
        """The ratio of the losses of a line to plain training's, paired by seed; None if not measured."""
        return line.to_loss(depth, self.plain.losses[1]) if self.plain else None

    def has_own_reference(self, line: Line) -> bool:
        """True if the line, which has another optimizer, was measured in one stage, where nothing is delayed."""
        return line is not self.plain and 1 in line.depths

    def to_reference(self, line: Line, depth: int) -> Interval | None:
        """The ratio of the losses of a line to those of the same optimizer in one stage; None if not measured."""
        return line.to_loss(depth, line.losses[1]) if self.has_own_reference(line) else self.to_plain(line, depth)

    def readings(self, line: Line) -> Mapping[int, Reading]:
        """Depth above 1 -> what its losses say."""
        return {depth: reading_of(each) for depth, each in self._to_reference(line).items()}

    def below(self, line: Line) -> list[int]:
        """The depths at which its losses are significantly below its reference's."""
        return [depth for depth, each in self._to_reference(line).items() if each.high < 1.0]

    def _to_reference(self, line: Line) -> Mapping[int, Interval]:
        found = {depth: self.to_reference(line, depth) for depth in line.depths if depth > 1}
        return {depth: each for depth, each in found.items() if each}


def maps_of(results: Path) -> list[FieldMap]:
    """The maps of all networks that were measured, the full scale before the small one."""
    found = []
    for network in NETWORKS:
        for scale in (FULL, SMALL):
            target = ReproductionTarget(f"{NAME}/{network}", scale)
            rounds = list(compared_runs(target, target.results(results)))
            if any(rows for _, rows in rounds):
                by_line: dict[tuple[str, str], list[Row]] = {}
                for this, rows in rounds:
                    more = [f"{name}={value}" for name, value in this.given.items() if name in _NAMED]
                    for row in rows:
                        by_line.setdefault((row["method"], " ".join([row["method"], *more])), []).append(row)
                found.append(_map(target, by_line, sum(not rows for _, rows in rounds)))
                break
    return found


def _map(target: ReproductionTarget, by_line: Mapping[tuple[str, str], Sequence[Row]], missing: int) -> FieldMap:
    """The map of the runs of each (method, line)."""
    every = [row for rows in by_line.values() for row in rows]
    at_rate: dict[float, list[Row]] = {}
    for row in by_line.get((PLAIN, PLAIN), ()):
        if row[STAGES] == "1":
            at_rate.setdefault(float(row["optimizer.lr"]), []).append(row)
    tried = {rate: Line.of(PLAIN, rows) for rate, rows in sorted(at_rate.items())}
    least = min(tried, key=lambda rate: statistics.fmean(tried[rate].losses[1].values()), default=0.0)
    reference = at_rate.get(least, [])
    groups: dict[str, list[Line]] = {"": [], "hybrid": [], _DELAYED: []}
    for (method, name), rows in sorted(by_line.items(), key=lambda each: (each[0][1] != PLAIN, each[0])):
        kind = _DELAYED if method == _DELAYED else "hybrid" if method in HYBRIDS else ""
        own = [row for row in rows if not (reference and _is_plain(name, row))]
        plain = [{**row, _DELAY: "0"} for row in reference] if len(own) < len(rows) else []
        groups[kind].append(Line.of(name, [*plain, *own], _DELAY if kind == _DELAYED else STAGES, method))
    dataset = ", ".join(sorted({row["dataset"] for row in every}))
    return FieldMap(target, dataset, groups[""], groups["hybrid"], groups[_DELAYED], tried, len(every), missing)


def _is_plain(name: str, row: Row) -> bool:
    """True for a run of plain training."""
    return (name, row[STAGES]) == (PLAIN, "1") or (name, row.get(_DELAY)) == (_DELAYED, "0")
