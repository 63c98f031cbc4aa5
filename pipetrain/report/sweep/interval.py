"""95 % confidence intervals of means and of their differences, by Student's t."""

import math
import statistics
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

_OUTSIDE = 0.05
"""Share of the intervals that miss the true value."""
_STEPS = 600


@dataclass(frozen=True)
class Interval:
    """A difference with its 95 % confidence interval.

    Attributes:
        middle: the estimate.
        half: half of the width; 0 if the numbers do not scatter, infinite if there are too few.
        how: from how many values, such as `paired, 8 seeds`; empty if they do not scatter.
    """

    middle: float
    half: float
    how: str

    @property
    def low(self) -> float:
        """Lower end of the interval."""
        return self.middle - self.half

    @property
    def high(self) -> float:
        """Upper end of the interval."""
        return self.middle + self.half

    @property
    def decided(self) -> bool:
        """True if the interval excludes 0."""
        return abs(self.middle) > self.half


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


def paired(differences: Sequence[float], noun: str) -> Interval:
    """The interval of the mean of two or more differences, one for each of the nouns, such as `seeds`."""
    sample = sample_of(differences)
    half = t_quantile(sample.count - 1) * math.sqrt(sample.square)
    return Interval(sample.mean, half, f"paired, {sample.count} {noun}")


def unpaired(first: Sample, other: Sample) -> Interval:
    """Welch's interval of the difference of the means of two independent samples."""
    error = first.square + other.square
    if not error:
        return Interval(first.mean - other.mean, 0.0, "")
    degrees = error**2 / sum(each.square**2 / (each.count - 1) for each in (first, other) if each.square)
    half = t_quantile(degrees) * math.sqrt(error)
    return Interval(first.mean - other.mean, half, f"unpaired, {first.count} and {other.count} runs")


def between_seeds(ours: Mapping[Hashable, float], theirs: Mapping[Hashable, float]) -> Interval:
    """Mean of our values minus the mean of theirs, each given by seed.

    If both sides have the same seeds, the values are paired: a seed determines the initial weights and the order of the
    data.
    """
    if min(len(ours), len(theirs)) < 2:
        return Interval(statistics.fmean(ours.values()) - statistics.fmean(theirs.values()), math.inf, "")
    if ours.keys() == theirs.keys():
        return paired([ours[seed] - theirs[seed] for seed in ours], "seeds")
    return unpaired(sample_of([*ours.values()]), sample_of([*theirs.values()]))


@cache
def t_quantile(degrees: float) -> float:
    """Half width of a two-sided 95 % interval in standard errors, for a number of degrees of freedom."""
    low, high = 0.0, 1.0
    while _outside(high, degrees) > _OUTSIDE:
        low, high = high, 2 * high
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if _outside(middle, degrees) > _OUTSIDE else (low, middle)
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
