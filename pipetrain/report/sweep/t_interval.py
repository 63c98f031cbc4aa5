"""Confidence intervals of the difference of two means, by Student's t distribution."""

import math
import statistics
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

CONFIDENCE = 0.95
_PRECISION, _TINY = 1e-12, 1e-300


@dataclass(frozen=True)
class MeanDifference:
    """The difference of two means.

    Attributes:
        mean: the difference.
        half_width: of its 95 % confidence interval; infinite where either mean is of one run.
    """

    mean: float
    half_width: float

    @property
    def decided(self) -> bool:
        """Whether the interval leaves out 0."""
        return abs(self.mean) > self.half_width


def mean_difference(ours: Mapping[Hashable, float], theirs: Mapping[Hashable, float]) -> MeanDifference:
    """Our mean minus theirs.

    With the same seeds on both sides it is the mean of the differences by seed, since a seed determines initial
    weights and the order of the data; otherwise the interval is Welch's.

    Args:
        ours: seed -> value; not empty.
        theirs: the same of the other side.
    """
    mean = statistics.fmean(ours.values()) - statistics.fmean(theirs.values())
    if min(len(ours), len(theirs)) < 2:
        return MeanDifference(mean, math.inf)
    if ours.keys() == theirs.keys():
        return MeanDifference(mean, _paired([ours[seed] - theirs[seed] for seed in ours]))
    return MeanDifference(mean, _welch([list(ours.values()), list(theirs.values())]))


def _paired(differences: Sequence[float]) -> float:
    count = len(differences)
    return t_quantile(count - 1) * statistics.stdev(differences) / math.sqrt(count)


def _welch(samples: Sequence[Sequence[float]]) -> float:
    """The half width, with the degrees of freedom of Welch and Satterthwaite."""
    errors = [(statistics.variance(each) / len(each), len(each) - 1) for each in samples]
    total = sum(error for error, _ in errors)
    if not total:
        return 0.0
    freedom = 1 / sum((error / total) ** 2 / degrees for error, degrees in errors)
    return t_quantile(freedom) * math.sqrt(total)


def t_quantile(freedom: float, confidence: float = CONFIDENCE) -> float:
    """The t that a Student variable stays within, on either side, with this probability.

    Args:
        freedom: degrees of freedom, not necessarily whole, at least 1.
        confidence: the probability.
    """
    low, high = 0.0, 1.0
    while _outside(high, freedom) > 1 - confidence:
        high *= 2
    while high - low > _PRECISION * high:
        middle = (low + high) / 2
        low, high = (middle, high) if _outside(middle, freedom) > 1 - confidence else (low, middle)
    return high


def _outside(t: float, freedom: float) -> float:
    """The probability of |T| > t, a value of the regularized incomplete beta function."""
    x, a, b = freedom / (freedom + t * t), freedom / 2, 0.5
    if x >= 1:
        return 1.0
    log_front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    front = math.exp(log_front)
    if x < (a + 1) / (a + b + 2):
        return front * _fraction(x, a, b) / a
    return 1 - front * _fraction(1 - x, b, a) / b


def _fraction(x: float, a: float, b: float) -> float:
    """The continued fraction of the incomplete beta function (Numerical Recipes, 3rd edition, eq. 6.4.5), by Lentz."""
    upper, lower = 1.0, 1 / _away_from_zero(1 - (a + b) * x / (a + 1))
    found = lower
    for m in range(1, 500):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for term in (even, odd):
            lower = 1 / _away_from_zero(1 + term * lower)
            upper = _away_from_zero(1 + term / upper)
            found *= upper * lower
        if abs(upper * lower - 1) < _PRECISION:
            break
    return found


def _away_from_zero(value: float) -> float:
    return value if abs(value) > _TINY else _TINY
