"""Closed forms of staleness and memory: what the papers' tables say of each method, by stage."""

from collections.abc import Callable
from dataclasses import dataclass

Delays = Callable[[int, int, int], list[int]]
"""(r, D, N) -> the distinct numbers of updates between reading weights and the minibatch's own update, ascending."""


def _microbatched(delay: Callable[[int, int], int]) -> Delays:
    """A delay of d microbatches is one of ceil((d - j) / N) updates for microbatch j."""
    return lambda r, D, N: sorted({max(0, -(-(delay(r, D) - j) // N)) for j in range(N)})


def _constant(value: int) -> Delays:
    return lambda r, D, N: [value]


_1F1B = _microbatched(lambda r, D: D - 1 - r)
_ENTRY = _microbatched(lambda r, D: D - 1)
_CYCLE = _microbatched(lambda r, D: 2 * (D - 1 - r))
_PIPEMARE = _microbatched(lambda r, D: 2 * (D - 1 - r) + 1)


def _nf1b(r: int, D: int, N: int) -> list[int]:
    return [D - 1 - r]


def _nf1b_entry(r: int, D: int, N: int) -> list[int]:
    return [D - 1]


@dataclass(frozen=True)
class ClosedForm:
    """A method under its default schedule.

    Attributes:
        forward, backward: staleness of F and of B.
        versions: (r, D, N) -> sets of weights that the stage holds at most, predictions and corrections included.
    """

    forward: Delays
    backward: Delays
    versions: Callable[[int, int, int], int]


def _one(r: int, D: int, N: int) -> int:
    return 1


def _two(r: int, D: int, N: int) -> int:
    return 2


def _stashed(delays: Delays) -> Callable[[int, int, int], int]:
    return lambda r, D, N: delays(r, D, N)[-1] + 1


_ZERO = _constant(0)

CLOSED = {
    "gpipe": ClosedForm(_ZERO, _ZERO, _one),
    "pipedream_flush": ClosedForm(_ZERO, _ZERO, _one),
    "naive_async": ClosedForm(_1F1B, _ZERO, _one),
    "pipedream": ClosedForm(_1F1B, _1F1B, _stashed(_1F1B)),
    "pipedream_vertical_sync": ClosedForm(_ENTRY, _ENTRY, _stashed(_ENTRY)),
    "pipedream_2bw": ClosedForm(_constant(1), _constant(1), _two),
    # floor(r/2) = 0 steps are no prediction, so the last of two stages holds one version
    "spectrain": ClosedForm(_1F1B, _ZERO, lambda r, D, N: 1 if r == D - 1 and r < 2 else 2),
    "pipeoptim": ClosedForm(_1F1B, _ZERO, lambda r, D, N: 1 if r == D - 1 else 2),
    "stale": ClosedForm(_CYCLE, _ZERO, _one),
    "pipemare": ClosedForm(_PIPEMARE, _ZERO, _two),
    "pipedream_pipemare": ClosedForm(_PIPEMARE, _PIPEMARE, _stashed(_PIPEMARE)),
    "timeprest": ClosedForm(_nf1b_entry, _ZERO, lambda r, D, N: r + 1),
    "v_timeprest": ClosedForm(_nf1b, _ZERO, _one),
    "i_timeprest": ClosedForm(_nf1b, _nf1b, lambda r, D, N: 1 if r == D - 1 else D - r + 1),
}
"""What `pipetrain report staleness` calls a method -> its closed forms (SpecTrain's and PipeOptim's F predicts)."""


def utilization_of_gpipe(num_stages: int, num_microbatches: int) -> float:
    """N / (N + P - 1) (PipeMare, table 1)."""
    return num_microbatches / (num_microbatches + num_stages - 1)
