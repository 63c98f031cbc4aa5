"""Differences of many samples from the best of them, with an error of 5 % over all of them together.

The best is chosen by the values that are then compared. Of equal samples, the one that is best by chance differs from
some other far more often than two samples do that were named in advance.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import numpy as np

from pipetrain.reporting.seed_statistics import SHARE_OUTSIDE, Interval, Values, difference

_DRAWS, _MOST_NUMBERS = 20_000, 2_000_000
_MOST_SEEDS = 30
"""Number of seeds whose critical value also serves for more, for which it would be slightly less."""


def differences_from_best(best: Values, others: Sequence[Values]) -> list[Interval]:
    """The difference of each sample from the best, with a simultaneous 95 % interval.

    With one other sample, that is the interval of two samples. Of more, it is the wider one of that and of the critical
    value times the standard error, for which the median over the samples stands where that is greater: few values may
    scatter little by chance.

    Args:
        best: the sample with the best mean of all.
        others: all other samples.
    """
    pairs = [difference(each, best) for each in others]
    errors = [each.error for each in pairs if each.error is not None]
    if len(errors) < 2:
        return pairs
    return [_widened(each, statistics.median(errors), len(errors) + 1) for each in pairs]


def _widened(pair: Interval, usual: float, samples: int) -> Interval:
    if pair.error is None:
        return pair
    half = critical_value(samples, min(pair.seeds, _MOST_SEEDS)) * max(pair.error, usual)
    return replace(pair, low=min(pair.low, pair.middle - half), high=max(pair.high, pair.middle + half))


@cache
def critical_value(samples: int, seeds: int) -> float:
    """What the largest difference from the best of equal normal samples, in standard errors, exceeds in 5 % of cases.

    Each standard error is at least the median one, as above. Simulated, for samples with common seeds; without these
    it is less, because their standard errors are known better.
    """
    draws = max(1, min(_DRAWS, _MOST_NUMBERS // (samples * seeds)))
    values = np.random.default_rng(0).standard_normal((draws, samples, seeds))
    best = values.mean(axis=2).argmin(axis=1)
    pairs = values - values[np.arange(draws), best][:, None]
    others = pairs[np.arange(samples) != best[:, None]].reshape(draws, samples - 1, seeds)
    errors = others.std(axis=2, ddof=1) / math.sqrt(seeds)
    errors = np.maximum(errors, np.median(errors, axis=1, keepdims=True))
    return float(np.quantile((others.mean(axis=2) / errors).max(axis=1), 1 - SHARE_OUTSIDE))
