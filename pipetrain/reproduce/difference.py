"""What sets one group of runs apart from another, as far as their scatter lets it be told."""

import math
from dataclasses import dataclass
from enum import Enum

from pipetrain.report.sweep.columns import MEASUREMENTS, TO_TARGET, column_of
from pipetrain.report.text_table import counted
from pipetrain.reproduce.results import MeasuredGroup

_ERRORS = 2.0
"""Standard errors of a difference of means from which on it is one."""
_BROAD = 0.1
"""The least difference that runs can tell, over the mean, from which on they do not show that one is no worse."""
_FINE = 0.01
"""Likewise, up to which they show that neither is better."""


class Relation(Enum):
    """How one mean stands to others."""

    BETTER = "better than"
    LIKE = "no worse than"
    WORSE = "worse than"


@dataclass(frozen=True)
class Difference:
    """What one group's mean has over another's.

    Attributes:
        first, other: the groups.
        metric: a column.
        within: the least difference that runs have to tell to show that one is no worse; None: a tenth of the mean.
    """

    first: MeasuredGroup
    other: MeasuredGroup
    metric: str
    within: float | None = None

    @property
    def word(self) -> str:
        """How the first one stands to the other."""
        if self._untaught:
            return "indistinguishable, as neither has learned, from"
        if not self._told:
            return "indistinguishable from"
        return "better than" if self._gain > 0 else "worse than"

    def shows(self, relation: Relation) -> bool | None:
        """Whether the relation holds; None where runs scatter too much to tell, or there is nothing to compare."""
        both = self.first, self.other
        if self._untaught or all(map(self._missing, both)):
            return None
        if self._told:
            return (self._gain < 0) is (relation is Relation.WORSE)
        if any(map(self._survived, both)):
            return None
        alike = relation is Relation.LIKE
        broad = _BROAD * self._size if self.within is None else self.within
        return alike if self._doubt <= (broad if alike else _FINE * self._size) else None

    @property
    def _told(self) -> bool:
        """Whether there is a difference; the runs that a diverging group has left make it no better than another."""
        winner, loser = (self.first, self.other) if self._gain > 0 else (self.other, self.first)
        return abs(self._gain) > self._doubt and (self._missing(loser) or not self._survived(winner))

    @property
    def _untaught(self) -> bool:
        """Whether what was learned is compared, and neither group has learned anything."""
        return self._of_learning and not (self.first.learned or self.other.learned)

    @property
    def _of_learning(self) -> bool:
        """Whether the column is of what was learned, and not of time or memory; seeds differ in it."""
        return self.metric not in MEASUREMENTS or self.metric in TO_TARGET

    def _missing(self, group: MeasuredGroup) -> bool:
        return not group.completed or self.metric not in group.means

    @property
    def _gain(self) -> float:
        """How much better the first is; one that did not complete, or not come so far, is worse than any that did."""
        ours, theirs = (group.means.get(self.metric) if group.completed else None for group in (self.first, self.other))
        if ours is None or theirs is None:
            return math.inf * ((ours is not None) - (theirs is not None)) if (ours is None) != (theirs is None) else 0.0
        return (1 if column_of(self.metric).higher else -1) * (ours - theirs)

    @property
    def _doubt(self) -> float:
        """The least gain that the runs can tell; none by what one run alone has learned, or if some missed a target."""
        both = self.first, self.other
        if any(map(self._missing, both)):
            return 0.0
        missed = self.metric in TO_TARGET and any(group.reached < group.completed for group in both)
        if missed or (self._of_learning and any(group.completed < 2 for group in both)):
            return math.inf
        return _ERRORS * math.hypot(*(_error(group, self.metric) for group in both))

    def _survived(self, group: MeasuredGroup) -> bool:
        """Whether others of its runs diverged, so that what was learned is that of the lucky ones."""
        return self._of_learning and bool(group.ended.get("diverged"))

    @property
    def _size(self) -> float:
        return abs(self.other.means.get(self.metric, math.inf))


def shown(group: MeasuredGroup, metric: str) -> str:
    """The name of a group, its mean and deviation, and the number of its runs; how they ended if none completed."""
    if not group.completed:
        return f"{group.name} ({', '.join(group.ended)})"
    if metric not in group.means:
        return f"{group.name} (never)"
    reached = group.reached if metric in TO_TARGET else group.completed
    runs = f"{reached} of {group.completed} runs" if reached < group.completed else counted(reached, "run", "runs")
    diverged = f", {group.ended['diverged']} diverged" if group.ended.get("diverged") else ""
    return f"{group.name} {_value(group, metric)} ({runs}{diverged})"


def _value(group: MeasuredGroup, metric: str) -> str:
    """The mean, and its deviation with two digits."""
    mean, deviation = group.means[metric], group.deviations.get(metric)
    if text := column_of(metric).text:
        return text(mean)
    if not deviation:
        return f"{mean:.4g}"
    decimals = max(0, 1 - math.floor(math.log10(deviation)))
    return f"{mean:.{decimals}f} ± {deviation:.{decimals}f}"


def _error(group: MeasuredGroup, metric: str) -> float:
    """Of the mean; 0 where there is one run alone."""
    return group.deviations.get(metric, 0.0) / math.sqrt(max(1, group.completed))
