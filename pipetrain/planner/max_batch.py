"""The largest minibatch that fits the devices of a pipeline."""

from collections.abc import Callable

from pipetrain.planner.costs.cut_profile import CutProfile

MOST_SAMPLES = 1 << 24
"""Largest number of samples that is tried: a device that holds so many counts as unlimited."""


Growth = tuple[float, float]
"""Bytes of a minibatch of no samples, and bytes of each sample."""


def growth_between(small: tuple[int, float], large: tuple[int, float]) -> Growth:
    """The line through two (samples, bytes); bytes never shrink as samples are added, nor are there less than 0."""
    (few, less), (many, more) = small, large
    per_sample = max(0.0, (more - less) / (many - few))
    return max(0.0, less - few * per_sample), per_sample


def activation_growth(cut: CutProfile, smaller: CutProfile | None) -> list[Growth]:
    """Growth of the activations of each stage: the line through profiles of two batch sizes, or from zero to one."""
    few, small = (
        (0, [0] * len(cut.stages)) if smaller is None else (smaller.profile.batch_size, smaller.activation_bytes)
    )
    sizes = zip(small, cut.activation_bytes, strict=True)
    return [growth_between((few or 0, less), (cut.profile.batch_size or 0, more)) for less, more in sizes]


def largest_batch(fits: Callable[[int], bool], step: int = 1, most: int = MOST_SAMPLES, share: float = 0.0) -> int:
    """The largest multiple of `step`, up to `most`, that fits; 0 if none does.

    Args:
        fits: number of samples -> True if they fit; if so, fewer fit, too.
        step: microbatches, into which a minibatch is divided.
        most: upper limit of the search.
        share: of the largest by which the result may be less.
    """
    low, high = 0, 1
    while high * step <= most and fits(high * step):
        low, high = high, 4 * high
    high = min(high, most // step + 1)
    while high - low > max(1, share * low):
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle * step) else (low, middle)
    return low * step
