"""Lists of one forward and one backward in turn, after a warm-up of forwards: the pattern of most schedules."""

from collections.abc import Iterator
from typing import ClassVar

from typing_extensions import override

from pipetrain.engine.schedules.base import Family, ListSchedule
from pipetrain.engine.schedules.operation import Operation, backward, forward, update


class DrainedOneFOneB(ListSchedule):
    """A schedule that fills and drains for each minibatch: `in_flight` determines its lists."""

    family: ClassVar[Family] = Family.SYNCHRONOUS

    @override
    def operations(self, r: int, D: int, N: int, M: int) -> list[Operation]:
        """Warm-up, steady state and drain, once per minibatch.

        With D = 3, N = 4, in_flight = D - r, and equal durations, minibatch 0 is (the updates U0 are at the ends)::

            stage 0  F0.0 F0.1 F0.2  .    .   B0.0 F0.3 B0.1  .   B0.2  .   B0.3
            stage 1   .   F0.0 F0.1  .   B0.0 F0.2 B0.1 F0.3 B0.2  .   B0.3
            stage 2   .    .   F0.0 B0.0 F0.1 B0.1 F0.2 B0.2 F0.3 B0.3
        """
        warm_up = self.in_flight(r, D, N) - 1
        return [op for t in range(M) for op in one_forward_one_backward(warm_up, N, t, 1)]


class ContinuousOneFOneB(ListSchedule):
    """A schedule that fills once, then does a forward and a backward in turn: `in_flight` determines its lists."""

    @override
    def operations(self, r: int, D: int, N: int, M: int) -> list[Operation]:
        return self.operations_in_flight(self.in_flight(r, D, N), N, M)

    def operations_in_flight(self, in_flight: int, N: int, M: int) -> list[Operation]:
        """One warm-up, one steady state, one drain for all M minibatches.

        With D = 3, N = 1, M = 5 and in_flight = D - r (an update follows each backward)::

            stage 0  F0.0 F1.0 F2.0  .    .   B0.0 F3.0 B1.0 F4.0 B2.0  .   B3.0  .   B4.0
            stage 1   .   F0.0 F1.0  .   B0.0 F2.0 B1.0 F3.0 B2.0 F4.0 B3.0  .   B4.0
            stage 2   .    .   F0.0 B0.0 F1.0 B1.0 F2.0 B2.0 F3.0 B3.0 F4.0 B4.0
        """
        return list(one_forward_one_backward(in_flight - 1, N, 0, M))

    @override
    def steady_cycle(self, r: int, D: int, N: int) -> list[Operation]:
        """In closed form: a forward and a backward for each of N microbatches, then the update."""
        warm_up, cycle = self.in_flight(r, D, N) - 1, []
        for j in range(N):
            cycle += [forward(*divmod(warm_up + j, N)), backward(0, j)]
        return [*cycle, update(0)]


def one_forward_one_backward(warm_up: int, N: int, first: int, minibatches: int) -> Iterator[Operation]:
    """`warm_up` forwards, then a forward and a backward in turn, then the remaining backwards; a U after every N-th.

    Covers the microbatches of `minibatches` minibatches from minibatch `first` on.
    """
    total = minibatches * N
    for k in range(total + warm_up):
        if k < total:
            yield forward(first + k // N, k % N)
        if (done := k - warm_up) >= 0:
            yield backward(first + done // N, done % N)
            if done % N == N - 1:
                yield update(first + done // N)
