"""Difference between two groups of runs, compared to the scatter between seeds."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from papers.results import STUCK, MeasuredGroup
from pipetrain.reporting.seed_statistics import Interval, Sample, difference, verdict, welch
from pipetrain.reporting.sweep.columns import MEASUREMENTS, TIMINGS, TO_TARGET, column_of
from pipetrain.runner.terminal.text_table import counted

LEARNED, MEASURED = 0.03, 0.1
"""The margin over the other's mean, of what was learned, and of time and memory."""


_ALONE = "one run does not show scatter"


class Relation(Enum):
    """Relation of one mean to another."""

    BETTER = "better than"
    LIKE = "within the margin of"
    WORSE = "worse than"
    FAILS = "fails, unlike"


@dataclass(frozen=True)
class Effect:
    """A difference as a figure shows it, with the gain at which the claim begins to hold.

    Attributes:
        first, other: names of what is compared.
        metric: a column.
        gain: of the first, positive if it is better, or a ratio; None without a mean of both.
        base: the mean of which gains are a share; 1 for a ratio.
        limit: the gain on whose one side the claim holds; None if no gain decides it.
        above: True if that is the upper side.
    """

    first: str
    other: str
    metric: str
    gain: Interval | None
    base: float = 1.0
    limit: float | None = None
    above: bool = True

    def share(self, gain: float) -> float:
        """A gain as a share of the other's mean, such as 0.1 for 10 %, also of a ratio."""
        return (gain - float(self.gain is not None and self.gain.of_ratio)) / self.base


@dataclass(frozen=True)
class Difference:
    """Difference between one group's mean and another's.

    A metric of learning is better if the interval of the gain excludes zero. Time and memory must also exceed the
    margin, because machines differ from day to day, and because bytes do not scatter at all.

    Attributes:
        first, other: the groups.
        metric: a column.
        within: the margin as the paper names it; None: 3 % of the other's mean of what was learned, 10 % in time and
            memory.
        floor: column -> value up to which nothing was learned, even if others are above theirs; empty: as the losses
            tell.
    """

    first: MeasuredGroup
    other: MeasuredGroup
    metric: str
    within: float | None = None
    floor: Mapping[str, float] = field(default_factory=dict)

    @property
    def untested(self) -> str | None:
        """Why the runs cannot decide any relation, even without scatter; None if they can."""
        both = self.first, self.other
        if unfinished := [group.name for group in both if group.broken_off]:
            return f"runs of {' and '.join(unfinished)} neither completed nor diverged"
        if self.metric in TIMINGS and any(group.completed == 1 for group in both):
            return "one timing does not show scatter"
        if lost := [group.name for group in both if self._lost(group)]:
            return f"{column_of(self.metric).head} of {' and '.join(lost)} was not measured, or not kept"
        if all(map(self._missing, both)):
            return "neither completed, or reached the target"
        if not self.of_learning:
            return None
        if any(group.completed == 1 for group in both):
            return _ALONE
        if self.first.same_bits(self.other):
            return "both computed the same bits, so this experiment does not separate them"
        return None if self.first.learned or self.other.learned else "neither learned"

    @property
    def interval(self) -> Interval | None:
        """The gain of the first, over common seeds if there are; None if one has no mean, or not of all its runs."""
        both = self.first, self.other
        if any(map(self._missing, both)) or any(map(self._some_missed, both)):
            return None
        sign = 1 if column_of(self.metric).higher else -1
        ours, theirs = (
            {seed: run[self.metric] for seed, run in group.by_seed.items() if self.metric in run} for group in both
        )
        common = sorted(ours.keys() & theirs.keys())
        if not self.of_cost and len(common) > 1:
            gain = [{seed: sign * each[seed] for seed in common} for each in (ours, theirs)]
            return difference(gain[0], gain[1])
        return welch(*(self._sample(group) for group in (both if sign > 0 else both[::-1])))

    @property
    def margin(self) -> float:
        """Margin by which a mean may be worse and still count as no worse."""
        if self.within is not None:
            return self.within
        return (MEASURED if self.of_cost else LEARNED) * abs(self.other.means.get(self.metric, 0.0))

    @property
    def of_learning(self) -> bool:
        """True if the column measures learning, which varies with the seed, and not time or memory."""
        return self.metric not in MEASUREMENTS or self.metric in TO_TARGET

    @property
    def of_cost(self) -> bool:
        """True if the column measures time or memory, even if that is the time to a target."""
        return self.metric in TIMINGS or not self.of_learning

    @property
    def ratio(self) -> float:
        """The first one's mean over the other's, or the inverse where less is better."""
        ours, theirs = self.first.means[self.metric], self.other.means[self.metric]
        return ours / theirs if column_of(self.metric).higher else theirs / ours

    def effect(self, relation: Relation) -> Effect:
        """The difference as a figure shows it, under a claimed relation."""
        start = self.margin if self.of_cost else 0.0
        limits = {Relation.BETTER: start, Relation.LIKE: -self.margin, Relation.WORSE: -start}
        mean, above = abs(self.other.means.get(self.metric, 0.0)), relation is not Relation.WORSE
        names = self.first.name, self.other.name
        if not mean:
            return Effect(*names, self.metric, None, limit=0.0, above=above)
        return Effect(*names, self.metric, self.interval, mean, limits.get(relation), above)

    def shows(self, relation: Relation) -> bool | None:
        """True if the relation holds; None if the runs do not decide."""
        if relation is Relation.FAILS:
            return self._fails
        if self.untested is not None:
            return None
        gain = self.interval
        if gain is None:
            return self._by_completion(relation)
        if self._survived(self.first) or self._survived(self.other):
            return self._by_survivors(relation, gain)
        return self._by_interval(relation, gain)

    def word(self, relation: Relation) -> str:
        """Words for the first group's relation to the other, given the claimed relation."""
        shown = self.shows(relation)
        if relation is Relation.FAILS and shown is not None:
            return "failed, unlike" if shown else "did not fail, nor did"
        if shown is None:
            return "against"
        if shown:
            better = relation is Relation.LIKE and self.shows(Relation.BETTER)
            return (Relation.BETTER if better else relation).value
        return Relation.WORSE.value if relation is Relation.LIKE else f"not {relation.value}"

    def reading(self, relation: Relation) -> str:
        """The difference, its interval and what that is held against, or why there is none."""
        if relation is Relation.FAILS:
            if self._alone:
                return _ALONE
            limits = [f"{column_of(column).head} of {value:g}" for column, value in self.floor.items()]
            return f"it fails with a {' or a '.join(limits)} or less" if limits else ""
        if self.untested is not None:
            return self.untested
        gain = self.interval
        if gain is None:
            return "" if self.shows(relation) is not None else "no interval, as some runs diverged or missed the target"
        held = f"margin {self._digits(self.margin)}" if relation is Relation.LIKE or self.of_cost else ""
        if not gain.how:
            return ", ".join(filter(None, (f"gain {self._digits(gain.middle)}", held)))
        ends = f"{self._digits(gain.low)} to {self._digits(gain.high)}"
        return ", ".join(filter(None, (f"gain {self._digits(gain.middle)}", f"95 % {ends}", gain.how, held)))

    def _by_interval(self, relation: Relation, gain: Interval) -> bool | None:
        start = self.margin if self.of_cost else 0.0
        if relation is Relation.LIKE:
            return verdict(gain, low=-self.margin).holds
        no = verdict(gain, high=start) if relation is Relation.BETTER else verdict(gain, low=-start)
        return None if no.holds is None else not no.holds

    def _by_completion(self, relation: Relation) -> bool | None:
        """Verdict if no run of a group completed, or reached the target, while all runs of the other did."""
        if not self._missing(self.first) and not self._missing(self.other):
            return None
        ahead = self._missing(self.other)
        better = self.first if ahead else self.other
        if self._survived(better) or self._some_missed(better):
            return None
        return (not ahead) if relation is Relation.WORSE else ahead

    def _by_survivors(self, relation: Relation, gain: Interval) -> bool | None:
        """Verdict if runs of one group failed: its metric covers only the rest, so it cannot make the group better."""
        worse = self._survived(self.first) and not self._survived(self.other) and gain.high < 0
        better = self._survived(self.other) and not self._survived(self.first) and gain.low > 0
        if not worse and not better:
            return None
        return worse if relation is Relation.WORSE else better

    @property
    def _fails(self) -> bool | None:
        """True if no run of the first group has learned while all of the other have; None if some of the first have.

        With the time to a target, reaching it counts in place of learning.
        """
        if self._alone or self.first.broken_off or self.other.broken_off:
            return None
        if self.other.failed or self._some_missed(self.other) or not self._learned(self.other):
            return None
        if not self._learned(self.first):
            return True
        return None if self.first.failed or self._some_missed(self.first) else False

    @property
    def _alone(self) -> bool:
        """True if a group has a single run, however it ended."""
        return any(sum(group.ended.values()) < 2 for group in (self.first, self.other))

    def _learned(self, group: MeasuredGroup) -> bool:
        if self.metric in TO_TARGET:
            return group.reached > 0
        if not self.floor or not group.completed:
            return group.learned
        return all(group.means.get(column, -math.inf) > value for column, value in self.floor.items())

    def _some_missed(self, group: MeasuredGroup) -> bool:
        """True if the column is the time to a target, and completed runs have not reached it."""
        return self.metric in TO_TARGET and group.reached < group.completed

    def _missing(self, group: MeasuredGroup) -> bool:
        return not group.completed or self.metric not in group.means

    def _lost(self, group: MeasuredGroup) -> bool:
        """True if completed runs lack the column although they need not reach anything for it, or have reached it."""
        needed = group.reached > 0 if self.metric in TO_TARGET else not self.of_learning
        return group.completed > 0 and self.metric not in group.means and needed

    def _survived(self, group: MeasuredGroup) -> bool:
        return self.of_learning and group.failed > 0

    def _sample(self, group: MeasuredGroup) -> Sample:
        return Sample(group.means[self.metric], group.deviations.get(self.metric, 0.0), max(1, group.completed))

    def _digits(self, value: float) -> str:
        text = column_of(self.metric).text
        if text:
            return ("-" if value < 0 else "") + text(abs(value))
        return f"{value:.2f}" if abs(value) < 100 else f"{value:.0f}"


def shown(group: MeasuredGroup, metric: str) -> str:
    """The name of a group, its mean and deviation, and the number of its runs; how they ended if none completed."""
    if not group.completed:
        return f"{group.name} ({', '.join(group.ended)})"
    if metric not in group.means:
        return f"{group.name} (never)"
    reached = group.reached if metric in TO_TARGET else group.completed
    runs = f"{reached} of {group.completed} runs" if reached < group.completed else counted(reached, "run", "runs")
    failed = (f", {count} {how}" for how in ("diverged", STUCK) if (count := group.ended.get(how)))
    return f"{group.name} {_value(group, metric)} ({runs}{''.join(failed)})"


def _value(group: MeasuredGroup, metric: str) -> str:
    """The mean, and its deviation with two digits."""
    mean, deviation = group.means[metric], group.deviations.get(metric)
    if text := column_of(metric).text:
        return text(mean)
    if not deviation:
        return f"{mean:.4g}"
    decimals = max(0, 1 - math.floor(math.log10(deviation)))
    return f"{mean:.{decimals}f} ± {deviation:.{decimals}f}"
