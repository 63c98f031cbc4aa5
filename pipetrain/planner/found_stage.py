"""A stage that a search has found."""

from collections.abc import Sequence
from typing import NamedTuple


class FoundStage(NamedTuple):
    """A stage between two states, with the seconds that it takes for each minibatch."""

    first: int
    last: int
    replicas: int
    time_s: float


def preference(stages: Sequence[FoundStage]) -> list[tuple[int, int]]:
    """Smallest for the pipeline that is taken of equally fast ones.

    Each stage in turn, from the first, has as many replicas as it can, then as few layers.
    """
    return [(-stage.replicas, stage.last) for stage in stages]
