"""The largest minibatch that fits the devices of a pipeline."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pipetrain.planner.costs.cut_profile import CutProfile

MOST_SAMPLES = 1 << 24
"""Largest number of samples that is tried: a device that holds so many counts as unlimited."""


@dataclass(frozen=True)
class ActivationGrowth:
    """Growth of a stage's bytes with the samples of a minibatch.

    Attributes:
        fixed: bytes of a minibatch of no samples.
        per_sample: bytes of each.
    """

    fixed: float
    per_sample: float

    @classmethod
    def between(cls, small: tuple[int, float], large: tuple[int, float]) -> "ActivationGrowth":
        """The line through two (samples, bytes); bytes never shrink as samples are added, nor are there less than 0."""
        (few, less), (many, more) = small, large
        per_sample = max(0.0, (more - less) / (many - few))
        return cls(max(0.0, less - few * per_sample), per_sample)

    def at(self, samples: int) -> float:
        """The bytes of so many samples."""
        return self.fixed + samples * self.per_sample


def activation_growth(cut: CutProfile, other: CutProfile | None) -> list[ActivationGrowth]:
    """Growth of the activations of each stage: the line through two profiles, or from zero if there is only one.

    Raises:
        ValueError: a profile's batch size is not known.
    """
    if cut.profile.batch_size is None or (other is not None and other.profile.batch_size is None):
        raise ValueError("a profile without a batch size")
    samples, kept = cut.profile.batch_size, cut.activation_bytes
    origin = (
        [(0, 0.0)] * len(kept)
        if other is None
        else [(other.profile.batch_size or 0, float(size)) for size in other.activation_bytes]
    )
    return [
        ActivationGrowth.between(*sorted([first, (samples, float(size))]))
        for first, size in zip(origin, kept, strict=True)
    ]


def largest_batch(fits: Callable[[int], bool], step: int = 1, most: int = MOST_SAMPLES, share: float = 0.0) -> int:
    """The largest multiple of `step`, up to `most`, that fits; 0 where none does.

    Args:
        fits: number of samples -> True if they fit; if so, fewer fit, too.
        step: microbatches, into which a minibatch is divided.
        most: where the search ends.
        share: of the largest by which the answer may be less.
    """
    low, high = 0, 1
    while high * step <= most and fits(high * step):
        low, high = high, 2 * high
    high = min(high, most // step + 1)
    while high - low > max(1, share * low):
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle * step) else (low, middle)
    return low * step


def overfull_stages(stage_bytes: Sequence[float], limits: Sequence[float]) -> list[int]:
    """The stages that take more than their devices have."""
    return [r for r, (needed, limit) in enumerate(zip(stage_bytes, limits, strict=True)) if needed > limit]
