"""Claims about what was trained or timed: what runs have to show, their controls, and verdicts."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from papers.difference import Effect, Relation, shown
from papers.results import MeasuredGroup
from pipetrain.reporting.sweep.columns import column_of

NOT_TESTED = "not tested here"
UNDECIDED = "undecided"
SEEN_IN_PART = "seen in part"
HOLDS, HOLDS_PARTLY, DOES_NOT_HOLD = "holds", "holds partly", "does not hold"
"""Verdicts of arithmetic: formulas, closed forms of schedules and memory, counts on the models themselves."""


SEEN, NOT_SEEN, UNTESTED = "seen", "not seen", "not tested"
"""Words for one part of a claim, besides `UNDECIDED`."""


@dataclass(frozen=True)
class Answer:
    """Answer of the results to one part of a rule.

    Attributes:
        experiments: the presets that it is from.
        holds: None if the runs do not decide.
        text: what is compared, and how it stands.
        scale: of the runs.
        tested: True if the runs can decide anything.
        effect: the difference; None if there is nothing to compare.
        reason: why the runs cannot decide anything.
    """

    experiments: tuple[str, ...]
    holds: bool | None
    text: str
    scale: str
    tested: bool = True
    effect: Effect | None = None
    reason: str = ""

    @property
    def word(self) -> str:
        """The answer in a word."""
        if self.holds is not None:
            return SEEN if self.holds else NOT_SEEN
        return UNDECIDED if self.tested else UNTESTED

    @property
    def line(self) -> str:
        """The answer in a word, and from what."""
        return f"{self.word}: {self.text}"


@dataclass(frozen=True)
class Verdict:
    """Verdict on a claim.

    Attributes:
        verdict: one of the words above, or `seen`, of what was trained or timed.
        why: from what this is seen, a line each.
        answers: the parts of a claim on what was trained or timed; the first lines are theirs.
    """

    verdict: str
    why: Sequence[str]
    answers: Sequence[Answer] = ()

    @property
    def tested(self) -> bool:
        """True if the claim was tested, even if the runs do not decide it."""
        return self.verdict != NOT_TESTED


def seen(holding: int, refuted: int, of: int, scale: str, *, superlative: bool = False) -> str:
    """The verdict of runs.

    Args:
        holding: Number of parts of the claim that they show.
        refuted: Number of parts of which they show the contrary.
        of: Number of parts that were tried.
        scale: `small` or `full`.
        superlative: True if the claim puts one before all others, so that one part can refute it and none alone bear
            it out.
    """
    where = f"at {scale} scale"
    if refuted and (superlative or not holding):
        return f"not seen {where}"
    if holding == of:
        return f"seen {where}"
    return f"{SEEN_IN_PART} {where}" if holding and not superlative else UNDECIDED


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
        whose: what has this value.
        small: True if the value is for the data of the small scale, so that the full scale does not have to reach it.
    """

    experiment: str
    method: str
    metric: str
    least: float
    whose: str = ""
    small: bool = False

    def unmet(self, groups: Groups) -> str | None:
        """Why the experiment is not fit; None if it is."""
        found = groups.get(self.method)
        asked = f"a {column_of(self.metric).head} of {self.least:g}"
        if found is None or self.metric not in found.means:
            return f"{self.method} must first reach {asked}, which was not measured"
        if found.means[self.metric] >= self.least:
            return None
        return f"{shown(found, self.metric)} does not reach {asked}" + (f", that of {self.whose}" if self.whose else "")


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
        """Why the experiment is not fit; None if it is."""
        both = [groups.get(name) for name in (self.method, self.other)]
        head = column_of(self.metric).head
        asked = f"{self.method} must come within {self.points:g} of {self.other}'s {head}, as in the paper"
        if any(found is None or self.metric not in found.means for found in both):
            return f"{asked}, which was not measured"
        first, other = (found for found in both if found)
        if first.means[self.metric] >= other.means[self.metric] - self.points:
            return None
        return f"{asked}; it has {shown(first, self.metric)}, {shown(other, self.metric)}"


@dataclass(frozen=True)
class Apart:
    """A method that has no remedy loses to another, so that there is something to remedy.

    Attributes:
        experiment: the preset.
        method: a group of it.
        against: the preset of the other group.
        other: the group that it is compared to.
        metric: a column.
        points: by how much its mean has to be worse, unless it diverged.
    """

    experiment: str
    method: str
    against: str
    other: str
    metric: str
    points: float

    def unmet(self, groups: Groups) -> str | None:
        """Why the experiment is not fit; None if it is."""
        found, other = groups.get(self.method), groups.get(self.other)
        asked = f"{self.method} must lose more than {self.points:g} of {self.other}'s {column_of(self.metric).head}"
        if found is None or other is None or self.metric not in other.means:
            return f"{asked}, which was not measured"
        if found.means.get(self.metric, -math.inf) < other.means[self.metric] - self.points:
            return None
        return f"{asked}; it has {shown(found, self.metric)}, {shown(other, self.metric)}"


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
        """Why the experiment is not fit; None if it is."""
        first, other = (groups.get(name) for name in self.methods)
        if first is None or other is None:
            return f"{' and '.join(self.methods)} must compute different numbers, which was not measured"
        if not first.same_bits(other):
            return None
        return f"{first.name} and {other.name} computed the same bits under every seed, as they do if {self.why}"


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
        """Why the experiment is not fit; None if it is."""
        first, other = (groups.get(name) for name in (self.first, self.other))
        if first is None or other is None or first.rates == other.rates:
            return None
        rates = [", ".join(f"{rate:g}" for rate in sorted(group.rates)) for group in (first, other)]
        return (
            f"{self.first} has a learning rate of {rates[0]} and {self.other} of {rates[1]}, so staleness alone does "
            "not explain the gap"
        )


Control = Reaches | Within | Apart | Distinct | SameRate


@dataclass(frozen=True)
class RankingClaim:
    """Claim that one mean is above, below or like other means, in an experiment and its companions.

    Attributes:
        experiment: the preset; those whose names begin with its own and `_` belong to it.
        first: the name of a group.
        relation: of its mean to those of the others.
        others: the names of groups.
        metric: a column; by default what the experiment is ranked by. A predicted one is that of simulated pipelines;
            others have a measured one in its place.
        against: the experiment of the others, where it is another one.
        within: margin that the paper states for `LIKE`; None for the default of `Difference`.
        floor: column -> value up to which a method has learned nothing, for `FAILS`; empty to decide by the losses, or,
            if the metric is the time to a target, by whether it is reached.
        factor: ratio that the paper states for `BETTER`.
        full: True if the small scale cannot decide.
        controls: what experiments have to show first.
    """

    experiment: str
    first: str
    relation: Relation
    others: tuple[str, ...]
    metric: str | None = None
    against: str | None = None
    within: float | None = None
    floor: Mapping[str, float] = field(default_factory=dict)
    factor: float | None = None
    full: bool = False
    controls: tuple[Control, ...] = ()

    @property
    def experiments(self) -> tuple[str, ...]:
        """The presets that it is about."""
        return (self.experiment,)


@dataclass(frozen=True)
class MeanRatioClaim:
    """The ratio of two throughputs, averaged over networks, of which each may have been timed but once.

    Attributes:
        experiments: presets, one for each network; two that were run are the least.
        first: the name of a group.
        relation: of its throughput to the other's; `BETTER` or `LIKE`.
        other: the name of a group.
        metric: a column.
        factor: mean ratio that the paper states.
    """

    experiments: tuple[str, ...]
    first: str
    relation: Relation
    other: str
    metric: str
    factor: float | None = None
    full: ClassVar[bool] = False


@dataclass(frozen=True)
class RatioTrendClaim:
    """A ratio of two groups that rises from one experiment to the next; the small scale has too few models for it.

    Attributes:
        experiments: presets.
        first: the name of a group.
        other: the name of the group that it is compared to.
        metric: a column.
    """

    experiments: tuple[str, ...]
    first: str
    other: str
    metric: str
    full: ClassVar[bool] = True


Contrast = tuple[str, str, str]
"""An experiment and two of its groups."""


@dataclass(frozen=True)
class ContrastClaim:
    """Claim that a change, such as a delay, costs one configuration more than another, seed by seed.

    Attributes:
        metric: a column; less is better.
        more, less: an experiment and its groups with and without the change; the ratio of the two is the cost.
    """

    metric: str
    more: Contrast
    less: Contrast
    full: ClassVar[bool] = False

    @property
    def experiments(self) -> tuple[str, ...]:
        """The presets that it is about."""
        return tuple(dict.fromkeys((self.more[0], self.less[0])))


Rule = RankingClaim | MeanRatioClaim | RatioTrendClaim | ContrastClaim
"""Rule by which the results of experiments decide a claim."""
