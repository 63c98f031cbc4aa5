"""Statistics over seeds: 95 % intervals of differences and ratios, and verdicts against a margin.

An interval is Student's t. Of eight or more values it is the hull of that and the bootstrap's middle 95 %; the means of
fewer values lie inside the t interval in nearly all resamples. It holds the mean of normal values in 95 % of cases. It
misses that of skewed values more often, on the side of the tail: that of lognormal values (s = 1) in 12 to 19 %.

A run that diverged, or did not reach a target, has the value infinity.
"""

import math
import random
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, NamedTuple

from typing_extensions import override

Values = Mapping[Any, float]
"""Seed -> value of its run; infinite if the run diverged."""
SHARE_OUTSIDE = 0.05
"""Share of the intervals that miss the true value."""
_NORMAL = 1.96
_STEPS = 600
_LARGEST_LOG = math.log(1e300)
_RESAMPLES = 4000
_FEW = 7
"""Number of values up to which the bootstrap's interval is narrower than Student's, however skewed they are."""
_MOST_SEEDS = 1000
"""Numbers of seeds beyond which the normal distribution stands for Student's."""


@dataclass(frozen=True)
class Interval:
    """A difference or ratio of two samples, with its 95 % confidence interval.

    Attributes:
        middle: the estimate; infinite if runs diverged; NaN if runs of both sides did.
        low, high: the ends; equal if the values do not scatter, infinite if there are too few, or where runs diverged.
        how: from how many values, such as `paired, 8 seeds`; empty if there is one, or unpaired ones do not scatter.
        seeds: number of seeds, of the side that has fewer.
        spread: standard deviation of the difference between two single runs, of logarithms in a ratio; None if unknown.
        error: standard error of the middle, of its logarithm in a ratio; None if unknown.
        infinite: number of infinite values on each side.
        of_ratio: True for a ratio.
    """

    middle: float
    low: float
    high: float
    how: str = ""
    seeds: int = 1
    spread: float | None = None
    error: float | None = None
    infinite: tuple[int, int] = (0, 0)
    of_ratio: bool = False

    @property
    def half(self) -> float:
        """Distance of the farther end from the middle."""
        return max(self.high - self.middle, self.middle - self.low)

    @property
    def decided(self) -> bool:
        """True if the interval excludes equality: a difference of 0, or a ratio of 1."""
        return not self.low <= float(self.of_ratio) <= self.high


@dataclass(frozen=True)
class Sample:
    """Mean, sample standard deviation and number of some values."""

    mean: float
    deviation: float
    count: int

    @property
    def square(self) -> float:
        """The squared standard error of the mean."""
        return self.deviation**2 / self.count


def sample_of(values: Sequence[float]) -> Sample:
    """The sample that two or more values are."""
    return Sample(statistics.fmean(values), statistics.stdev(values), len(values))


def welch(first: Sample, other: Sample) -> Interval:
    """Welch's interval of the difference of the means of two independent samples."""
    middle, error = first.mean - other.mean, first.square + other.square
    if not error:
        return Interval(middle, middle, middle, seeds=min(first.count, other.count), spread=0.0, error=0.0)
    degrees = error**2 / sum(each.square**2 / (each.count - 1) for each in (first, other) if each.square)
    half = t_quantile(degrees) * math.sqrt(error)
    how = f"unpaired, {first.count} and {other.count} runs"
    spread, seeds = math.hypot(first.deviation, other.deviation), min(first.count, other.count)
    return Interval(middle, middle - half, middle + half, how, seeds, spread, math.sqrt(error))


def difference(ours: Values, theirs: Values) -> Interval:
    """Mean of our values minus the mean of theirs.

    If both sides have the same seeds, the values are paired: a seed determines the initial weights and the order of the
    data. Where values are infinite, so is one end of the interval; for the other they count as the largest finite value
    of their side. If all values of one side are infinite and none of the other, both ends are.
    """
    paired, seeds = ours.keys() == theirs.keys(), min(len(ours), len(theirs))
    finite = [list(filter(math.isfinite, each.values())) for each in (ours, theirs)]
    lost = len(ours) - len(finite[0]), len(theirs) - len(finite[1])
    if all(lost):
        middle = math.nan
    elif paired:
        middle = statistics.fmean([ours[seed] - theirs[seed] for seed in ours])
    else:
        middle = statistics.fmean(ours.values()) - statistics.fmean(theirs.values())
    low, high = -math.inf, math.inf
    if seeds < 2 or not all(finite):
        if seeds > 1 and not all(lost):
            low = high = middle
        return Interval(middle, low, high, seeds=seeds, infinite=lost)
    first, other = (
        {seed: min(value, max(known)) for seed, value in each.items()}
        for each, known in zip((ours, theirs), finite, strict=True)
    )
    samples = [[first[seed] - other[seed] for seed in first]] if paired else [[*first.values()], [*other.values()]]
    found = _by_t(*samples)
    ends = _bootstrapped(tuple(map(tuple, samples))) if max(map(len, samples)) > _FEW else (found.low, found.high)
    low, high = low if lost[1] else min(found.low, ends[0]), high if lost[0] else max(found.high, ends[1])
    return replace(found, middle=middle, low=low, high=high, infinite=lost)


def ratio(ours: Values, theirs: Values) -> Interval:
    """Our geometric mean over theirs, of values above 0: the exponential of the difference of logarithms."""
    logs = [{seed: math.log(value) for seed, value in each.items()} for each in (ours, theirs)]
    found = difference(logs[0], logs[1])
    middle, low, high = (
        math.inf if each >= _LARGEST_LOG else math.exp(each) for each in (found.middle, found.low, found.high)
    )
    return replace(found, middle=middle, low=low, high=high, of_ratio=True)


class Verdict(NamedTuple):
    """What an interval says of a margin.

    Attributes:
        holds: True if it lies inside, False if it lies outside; None if neither: undecided.
        seeds: number of seeds that would decide if the estimate and the spread stayed as they are, which is as likely
            as not if they are the true ones; None if decided, or if no number can be estimated.
    """

    holds: bool | None
    seeds: int | None = None

    @override
    def __str__(self) -> str:
        """The verdict in words."""
        if self.holds is not None:
            return "holds" if self.holds else "fails"
        return "undecided" + (f", about {self.seeds:,} seeds would decide at even odds" if self.seeds else "")


def verdict(interval: Interval, low: float = -math.inf, high: float = math.inf) -> Verdict:
    """Whether the whole interval lies in the margin from `low` to `high`, both included, or the whole outside."""
    if low <= interval.low and interval.high <= high:
        return Verdict(holds=True)
    if interval.low > high or interval.high < low:
        return Verdict(holds=False)
    return Verdict(None, _seeds_that_decide(interval, [edge for edge in (low, high) if math.isfinite(edge)]))


def _seeds_that_decide(interval: Interval, edges: Iterable[float]) -> int | None:
    """The least number at which the t interval around the same estimate would contain no edge."""
    scale: Callable[[float], float] = math.log if interval.of_ratio else float
    if not interval.spread or any(interval.infinite):
        return None
    distance = min(abs(scale(interval.middle) - scale(edge)) for edge in edges)
    if not distance:
        return None
    seeds = max(interval.seeds + 1, math.ceil((_NORMAL * interval.spread / distance) ** 2))
    while seeds < _MOST_SEEDS and t_quantile(seeds - 1) * interval.spread / math.sqrt(seeds) >= distance:
        seeds += 1
    return seeds


def _by_t(*samples: Sequence[float]) -> Interval:
    """The t interval of the mean of one sample, of differences in pairs, or of the difference of two means."""
    if len(samples) > 1:
        return welch(*map(sample_of, samples))
    sample = sample_of(samples[0])
    error = math.sqrt(sample.square)
    half = t_quantile(sample.count - 1) * error
    how = f"paired, {sample.count} seeds"
    return Interval(sample.mean, sample.mean - half, sample.mean + half, how, sample.count, sample.deviation, error)


@cache
def _bootstrapped(sides: tuple[tuple[float, ...], ...]) -> tuple[float, float]:
    """The ends of the middle 95 % of the mean, or of the difference of two means, over resamples of the sides."""
    dice = random.Random(0)
    signs = (1, -1)[: len(sides)]
    means = sorted(
        sum(sign * statistics.fmean(dice.choices(side, k=len(side))) for sign, side in zip(signs, sides, strict=True))
        for _ in range(_RESAMPLES)
    )
    outside = round(_RESAMPLES * SHARE_OUTSIDE / 2)
    return means[outside], means[-1 - outside]


@cache
def t_quantile(degrees: float) -> float:
    """Half width of a two-sided 95 % interval in standard errors, for a number of degrees of freedom."""
    low, high = 0.0, 1.0
    while _outside(high, degrees) > SHARE_OUTSIDE:
        low, high = high, 2 * high
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if _outside(middle, degrees) > SHARE_OUTSIDE else (low, middle)
    return high


def _outside(limit: float, degrees: float) -> float:
    """The probability that |t| is above a limit.

    With t = sqrt(n) tan(x) at n degrees of freedom, the density of x is that of cos(x)^(n - 1): Simpson's rule.
    """
    step = math.atan(limit / math.sqrt(degrees)) / _STEPS
    values: list[float] = [math.cos(step * index) ** (degrees - 1) for index in range(_STEPS + 1)]
    inside = step / 3 * (values[0] + values[-1] + 4 * sum(values[1:-1:2]) + 2 * sum(values[2:-1:2]))
    scale: float = math.exp(math.lgamma((degrees + 1) / 2) - math.lgamma(degrees / 2)) / math.sqrt(math.pi)
    return 1.0 - 2.0 * scale * inside
