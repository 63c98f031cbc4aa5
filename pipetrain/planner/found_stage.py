"""A stage that a search has found."""

from typing import NamedTuple


class FoundStage(NamedTuple):
    """A stage between two states, with the seconds that it takes for each minibatch."""

    first: int
    last: int
    replicas: int
    time_s: float
