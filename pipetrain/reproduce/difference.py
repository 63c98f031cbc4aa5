"""What sets one group of runs apart from another, as far as their scatter lets it be told."""

import math
from dataclasses import dataclass
from enum import Enum

from pipetrain.report.sweep.columns import MEASUREMENTS, TIMINGS, TO_TARGET, column_of
from pipetrain.report.text_table import counted
from pipetrain.reproduce.results import MeasuredGroup

_ERRORS = 2.0
"""Standard errors of a difference of means from which on it is one."""
_TIMED_ONCE = 0.05
"""The least difference that single runs tell in what was timed, over the mean."""
_FINE = 0.01
"""A gain over the mean that runs have to be able to tell to show that there is none."""
_LIKE_LEARNED, _LIKE_MEASURED = 0.03, 0.1
"""A loss over the mean that runs have to rule out to show that one is no worse, of what was learned, and of time or
memory."""


class Relation(Enum):
    """How one mean stands to others."""

    BETTER = "better than"
    LIKE = "no worse than"
    WORSE = "worse than"
    FAILS = "diverged or untaught, unlike"


@dataclass(frozen=True)
class Difference:
    """What one group's mean has over another's.

    Attributes:
        first, other: the groups.
        metric: a column.
        within: the loss that runs have to rule out to show that one is no worse, as the paper names it; None: 3 % of
            the mean of what was learned, and none that they tell; 10 % in time and memory.
    """

    first: MeasuredGroup
    other: MeasuredGroup
    metric: str
    within: float | None = None

    def word(self, relation: Relation) -> str:
        """How the first one stands to the other, asked about a relation."""
        if relation is Relation.FAILS and (failed := self.shows(relation)) is not None:
            return "failed, unlike" if failed else "trained, as did"
        if self._untaught:
            return "not told apart, as neither has learned, from"
        if self._told:
            return "better than" if self._gain > 0 else "worse than"
        if not self._doubt:
            return "equal to"
        if self._doubt == math.inf:
            return "not told apart from"
        return f"not told apart ({self._shown_doubt} would be) from"

    def shows(self, relation: Relation) -> bool | None:
        """Whether the relation holds; None where runs scatter too much to tell, or there is nothing to compare."""
        if relation is Relation.FAILS:
            return self._fails
        if self._untaught or all(map(self._missing, (self.first, self.other))):
            return None
        if relation is Relation.LIKE:
            return self._like
        gain = self._gain if relation is Relation.BETTER else -self._gain
        if self._told:
            return gain > 0
        if self._lucky:
            return None
        return False if self._doubt + gain <= _FINE * self._size else None

    @property
    def _like(self) -> bool | None:
        """Whether the first is no worse."""
        if self._told and self._gain > 0:
            return True
        if not self._told and self._lucky:
            return None
        if self._doubt - self._gain <= self._allowed:
            return True
        return False if self._told and -self._gain > self._allowed else None

    @property
    def _allowed(self) -> float:
        """The loss with which the first still counts as no worse."""
        if self.within is not None:
            return self.within
        if not self.of_learning:
            return _LIKE_MEASURED * self._size
        return 0.0 if self._told else _LIKE_LEARNED * self._size

    @property
    def _fails(self) -> bool | None:
        """Whether no run of the first has learned, where all of the other have; None where some have."""
        if not self.other.learned or self.other.diverged:
            return None
        if not self.first.learned:
            return True
        return None if self.first.diverged else False

    @property
    def _told(self) -> bool:
        """Whether there is a difference; the runs that a diverging group has left make it no better than another."""
        winner, loser = (self.first, self.other) if self._gain > 0 else (self.other, self.first)
        return abs(self._gain) > self._doubt and (self._missing(loser) or not self._survived(winner))

    @property
    def _lucky(self) -> bool:
        """Whether one of the means is that of the runs that did not diverge."""
        return self._survived(self.first) or self._survived(self.other)

    @property
    def _untaught(self) -> bool:
        """Whether what was learned is compared, and neither group has learned anything."""
        return self.of_learning and not (self.first.learned or self.other.learned)

    @property
    def ratio(self) -> float:
        """The first one's mean over the other's, or the inverse where less is better."""
        ours, theirs = self.first.means[self.metric], self.other.means[self.metric]
        return ours / theirs if column_of(self.metric).higher else theirs / ours

    @property
    def of_learning(self) -> bool:
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
        if missed or (self.of_learning and any(group.completed < 2 for group in both)):
            return math.inf
        if self.metric in TIMINGS and any(group.completed < 2 for group in both):
            return _TIMED_ONCE * self._size
        return _ERRORS * math.hypot(*(_error(group, self.metric) for group in both))

    @property
    def _shown_doubt(self) -> str:
        text = column_of(self.metric).text
        return text(self._doubt) if text else f"{self._doubt:.2g}" if self._doubt < 100 else f"{self._doubt:.0f}"

    def _survived(self, group: MeasuredGroup) -> bool:
        """Whether others of its runs diverged, so that what was learned is that of the lucky ones."""
        return self.of_learning and group.diverged > 0

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
    diverged = f", {group.diverged} diverged" if group.diverged else ""
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
