"""Closed forms of staleness and memory: the papers' tables, by stage."""

from collections.abc import Callable
from typing import NamedTuple


class Position(NamedTuple):
    """Stage r of D, with N microbatches of a minibatch."""

    r: int
    D: int
    N: int

    @property
    def behind(self) -> int:
        """Number of stages after this one."""
        return self.D - 1 - self.r


Delays = Callable[[Position], list[int]]
"""The distinct numbers of updates between reading weights and the minibatch's own update, ascending."""


class ClosedForm(NamedTuple):
    """A method under its default schedule.

    Attributes:
        forward, backward: staleness of F and of B.
        versions: largest number of sets of weights that the stage holds, predictions and corrections included.
    """

    forward: Delays
    backward: Delays
    versions: Callable[[Position], int]


def _microbatched(delay: Callable[[Position], int]) -> Delays:
    """A delay of d microbatches is one of ceil((d - j) / N) updates for microbatch j."""
    return lambda at: sorted({max(0, -(-(delay(at) - j) // at.N)) for j in range(at.N)})


def _stashed(delays: Delays) -> Callable[[Position], int]:
    return lambda at: delays(at)[-1] + 1


def _always(count: int) -> Callable[[Position], int]:
    return lambda _: count


_ZERO = _microbatched(lambda _: 0)
_1F1B = _microbatched(lambda at: at.behind)
_ENTRY = _microbatched(lambda at: at.D - 1)
_CYCLE = _microbatched(lambda at: 2 * at.behind)
_PIPEMARE = _microbatched(lambda at: 2 * at.behind + 1)

CLOSED = {
    "gpipe": ClosedForm(_ZERO, _ZERO, _always(1)),
    "pipedream_flush": ClosedForm(_ZERO, _ZERO, _always(1)),
    "naive_async": ClosedForm(_1F1B, _ZERO, _always(1)),
    "pipedream": ClosedForm(_1F1B, _1F1B, _stashed(_1F1B)),
    "pipedream_vertical_sync": ClosedForm(_ENTRY, _ENTRY, _stashed(_ENTRY)),
    "pipedream_2bw": ClosedForm(lambda _: [1], lambda _: [1], _always(2)),
    # floor(r/2) = 0 steps are no prediction, so the last of two stages holds one version
    "spectrain": ClosedForm(_1F1B, _ZERO, lambda at: 1 if not at.behind and at.r < 2 else 2),
    "pipeoptim": ClosedForm(_1F1B, _ZERO, lambda at: 2 if at.behind else 1),
    "stale": ClosedForm(_CYCLE, _ZERO, _always(1)),
    "pipemare": ClosedForm(_PIPEMARE, _ZERO, _always(2)),
    "pipedream_pipemare": ClosedForm(_PIPEMARE, _PIPEMARE, _stashed(_PIPEMARE)),
    "timeprest": ClosedForm(lambda at: [at.D - 1], _ZERO, lambda at: at.r + 1),
    "v_timeprest": ClosedForm(lambda at: [at.behind], _ZERO, _always(1)),
    "i_timeprest": ClosedForm(
        lambda at: [at.behind], lambda at: [at.behind], lambda at: at.behind + 2 if at.behind else 1
    ),
}
"""Row of `python -m papers staleness` -> its closed forms (SpecTrain's and PipeOptim's forwards predict)."""


def utilization_of_gpipe(num_stages: int, num_microbatches: int) -> float:
    """N / (N + D - 1), the share of its time in which a stage of GPipe computes (PipeMare, table 1)."""
    return num_microbatches / (num_microbatches + num_stages - 1)
