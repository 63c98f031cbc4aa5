"""A schedule: one forward, one backward, with more forwards before the first backward."""

from dataclasses import dataclass

from pipetrain import Family, ListSchedule, Operation
from pipetrain.engine.schedules.operation import backward, forward, update
from typing_extensions import override


@dataclass(frozen=True)
class OwnSchedule(ListSchedule):
    """1F1B with a flush, in which messages hide behind the computation of further forwards.

    To make another schedule of it, change both functions; pipetrain checks before a run that they agree and that the
    lists of all stages fit together. r is the stage of D, N the microbatches of a minibatch, M the minibatches.

    Attributes:
        extra: further forwards before the first backward, on all stages but the last.
    """

    name = "own_schedule"
    family = Family.SYNCHRONOUS  # the methods that it works with
    extra: int = 1

    @override
    def in_flight(self, r: int, D: int, N: int) -> int:
        return min(N, D - r + self.extra) if r < D - 1 else 1

    @override
    def operations(self, r: int, D: int, N: int, M: int) -> list[Operation]:
        found, warm_up = [], self.in_flight(r, D, N)
        for t in range(M):
            found += [forward(t, j) for j in range(warm_up)]
            for j in range(N):
                found += [backward(t, j), *([forward(t, warm_up + j)] if warm_up + j < N else [])]
            found.append(update(t))
        return found
