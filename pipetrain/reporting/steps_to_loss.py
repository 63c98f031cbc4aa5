"""Slowdowns from loss curves: how many steps a loss takes to fall to a target, over a baseline's.

Jung et al. (2026, arXiv 2602.03515) take one stage as the baseline. With tokens in place of steps, a slowdown is the
token overhead to equal loss.
"""

import math
import statistics
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

from pipetrain.reporting.seed_statistics import Interval, Values, ratio

SHARE = 0.7
"""Share of the baseline's steps after which its loss is the target."""
SMOOTHED = 0.05
"""Share of the baseline's steps that training losses are averaged over."""


class LossCurve(NamedTuple):
    """Losses of a run.

    Attributes:
        steps: number of steps so far at each loss, rising.
        losses: of a single step, or the mean over the steps since the loss before it.
    """

    steps: Sequence[float]
    losses: Sequence[float]


def trailing_mean(curve: LossCurve, width: float) -> LossCurve:
    """The mean over the last `width` steps, or fewer at the beginning, at every step of the curve.

    It lags behind the curve by half of the width, so all curves of a comparison need the same one.
    """
    ends = (0.0, *curve.steps)
    sums = (
        0.0,
        *accumulate(loss * (end - begin) for (begin, end), loss in zip(pairwise(ends), curve.losses, strict=True)),
    )
    begins = [bisect_right(curve.steps, step - width) for step in curve.steps]
    means = [(sums[at] - sums[begin]) / (ends[at] - ends[begin]) for at, begin in enumerate(begins, start=1)]
    return LossCurve(curve.steps, means)


def loss_at(curve: LossCurve, step: float) -> float:
    """The loss after a number of steps, on a straight line between its neighbors; at both ends that of the end."""
    after = bisect_left(curve.steps, step)
    if after in (0, len(curve.steps)):
        return curve.losses[min(after, len(curve.losses) - 1)]
    return _between(step, curve.steps[after - 1 : after + 1], curve.losses[after - 1 : after + 1])


def steps_to_loss(curve: LossCurve, target: float) -> float:
    """Number of steps after which the loss is first at most the target, on a straight line; infinite if it never is."""
    at = next((number for number, loss in enumerate(curve.losses) if loss <= target), None)
    if at is None:
        return math.inf
    if at == 0:
        return curve.steps[0]
    return _between(target, curve.losses[at - 1 : at + 1], curve.steps[at - 1 : at + 1])


def smoothing_of(baseline: Sequence[LossCurve]) -> float:
    """Number of steps that training losses are averaged over, in the baseline's runs and those compared with it."""
    return SMOOTHED * statistics.fmean(curve.steps[-1] for curve in baseline)


def target_of(baseline: Sequence[LossCurve], share: float = SHARE) -> float:
    """The loss to reach: the mean of the baseline's runs, each after a share of its steps."""
    return statistics.fmean(loss_at(curve, share * curve.steps[-1]) for curve in baseline)


def slowdown(ours: Values, baseline: Values) -> Interval:
    """Our steps to the target over the baseline's, both by seed; or samples, tokens or seconds.

    If both have several seeds, or the baseline has all of ours, only these are compared, in pairs.
    """
    shared = ours.keys() & baseline.keys()
    if len(shared) < 2 and len(shared) < len(ours):
        return ratio(ours, baseline)
    return ratio(*({seed: each[seed] for seed in ours if seed in shared} for each in (ours, baseline)))


def _between(x: float, places: Sequence[float], values: Sequence[float]) -> float:
    share = (x - places[0]) / (places[1] - places[0])
    return values[0] + share * (values[1] - values[0])
