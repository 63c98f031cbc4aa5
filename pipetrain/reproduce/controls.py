"""What an experiment has to show before it says anything on a claim: that its runs are fit to test it."""

from collections.abc import Mapping
from dataclasses import dataclass

from pipetrain.report.sweep.columns import column_of
from pipetrain.reproduce.difference import shown
from pipetrain.reproduce.results import MeasuredGroup

Groups = Mapping[str, MeasuredGroup]
"""Name -> the runs of an experiment and of its companions."""


@dataclass(frozen=True)
class Reaches:
    """A method of the experiment has learned the task.

    Attributes:
        experiment: the preset.
        method: a group of it.
        metric: a column; more is better.
        least: the value that its mean has to reach.
    """

    experiment: str
    method: str
    metric: str
    least: float

    def unmet(self, groups: Groups) -> str | None:
        """Why the experiment is not fit; None where it is."""
        found = groups.get(self.method)
        head = column_of(self.metric).head
        if found is None or self.metric not in found.means:
            return f"{self.method} has to reach a {head} of {self.least:g} first; it was not measured"
        if found.means[self.metric] >= self.least:
            return None
        return f"{shown(found, self.metric)} does not reach a {head} of {self.least:g}"


@dataclass(frozen=True)
class Within:
    """A method that the paper finds as good as another is so here, too.

    Attributes:
        experiment: the preset.
        method: a group of it.
        other: the group that it is compared to.
        metric: a column.
        points: how much worse its mean may be.
    """

    experiment: str
    method: str
    other: str
    metric: str
    points: float

    def unmet(self, groups: Groups) -> str | None:
        """Why the experiment is not fit; None where it is."""
        both = [groups.get(name) for name in (self.method, self.other)]
        head = column_of(self.metric).head
        asked = f"{self.method} has to come within {self.points:g} of {self.other}'s {head}, as in the paper"
        if any(found is None or self.metric not in found.means for found in both):
            return f"{asked}, which was not measured"
        first, other = (found for found in both if found)
        if first.means[self.metric] >= other.means[self.metric] - self.points:
            return None
        return f"{asked}; it has {shown(first, self.metric)}, {shown(other, self.metric)}"


@dataclass(frozen=True)
class Distinct:
    """Two methods that the claim sets apart compute different numbers.

    Attributes:
        experiment: the preset.
        methods: two groups of it.
        why: where they do not.
    """

    experiment: str
    methods: tuple[str, str]
    why: str

    def unmet(self, groups: Groups) -> str | None:
        """Why the experiment is not fit; None where it is."""
        first, other = (groups.get(name) for name in self.methods)
        if first is None or other is None or not first.same_bits(other):
            return None
        return f"{first.name} and {other.name} computed the same bits under every seed, as they do where {self.why}"


@dataclass(frozen=True)
class SameRate:
    """Two groups have the same learning rate, so that what sets them apart is not that.

    Attributes:
        experiment: the preset.
        first, other: groups of it.
    """

    experiment: str
    first: str
    other: str

    def unmet(self, groups: Groups) -> str | None:
        """Why the experiment is not fit; None where it is."""
        first, other = (groups.get(name) for name in (self.first, self.other))
        if first is None or other is None or first.rates == other.rates:
            return None
        rates = [", ".join(f"{rate:g}" for rate in sorted(group.rates)) for group in (first, other)]
        return (
            f"{self.first} has a learning rate of {rates[0]} and {self.other} one of {rates[1]}, so the gap is not "
            "that of staleness alone"
        )


Control = Reaches | Within | Distinct | SameRate
