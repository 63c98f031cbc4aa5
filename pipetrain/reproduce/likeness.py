"""Whether a final loss is like plain training's, as far as few seeds tell."""

import itertools
import math
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from pipetrain.report.sweep.interval import sample_of, unpaired

NEAR = 1.05
"""A loss up to so many times that of plain training is like it."""
_TAIL = 0.025


class Reading(Enum):
    """Whether seeds bear out that a loss is like plain training's."""

    SUPPORTED = "supported"
    REFUTED = "refuted"
    UNDECIDED = "undecided"


@dataclass(frozen=True)
class Likeness:
    """The ratio of two median losses, with its 95 % interval.

    Attributes:
        low, high: the ends, by the bootstrap; infinite where runs diverged.
        reading: what they say.
    """

    low: float
    high: float
    reading: Reading


def likeness(losses: Sequence[float], plain: Sequence[float]) -> Likeness:
    """How losses of some seeds stand to those of plain training.

    With three seeds the bootstrap of medians covers less than 95 %; Welch's t interval of the logarithms has to agree.

    Args:
        losses: one for each seed; infinite of a run that diverged.
        plain: those of plain training.
    """
    if not all(map(math.isfinite, (*losses, *plain))):
        lost = len(losses) > 1 and all(map(math.isfinite, plain)) and not any(map(math.isfinite, losses))
        return Likeness(math.inf, math.inf, Reading.REFUTED if lost else Reading.UNDECIDED)
    low, high = _bootstrapped(losses, plain)
    if min(len(losses), len(plain)) < 2:
        return Likeness(low, high, Reading.UNDECIDED)
    logs = unpaired(*(sample_of([math.log(loss) for loss in each]) for each in (losses, plain)))
    if max(math.log(high), logs.high) <= math.log(NEAR):
        return Likeness(low, high, Reading.SUPPORTED)
    beyond = min(math.log(low), logs.low) > math.log(NEAR)
    return Likeness(low, high, Reading.REFUTED if beyond else Reading.UNDECIDED)


def _bootstrapped(losses: Sequence[float], plain: Sequence[float]) -> tuple[float, float]:
    """The ends of the middle 95 % of the ratio of medians, over all resamples of both."""
    counts = Counter[float]()
    for (first, times), (other, as_often) in itertools.product(_medians(losses).items(), _medians(plain).items()):
        counts[first / other] += times * as_often
    return _quantile(counts, _TAIL), _quantile(counts, 1 - _TAIL)


def _medians(values: Sequence[float]) -> Counter[float]:
    """Median of a resample -> how many of all resamples have it."""
    counts = Counter[float]()
    for picked in itertools.combinations_with_replacement(range(len(values)), len(values)):
        ways = math.factorial(len(values)) // math.prod(map(math.factorial, Counter(picked).values()))
        counts[statistics.median(values[index] for index in picked)] += ways
    return counts


def _quantile(counts: Counter[float], share: float) -> float:
    """The least value that such a share of all is not above."""
    left = share * counts.total()
    for value in sorted(counts):
        left -= counts[value]
        if left <= 0:
            return value
    return max(counts)
