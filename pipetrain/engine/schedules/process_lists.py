"""Schedules that order the operations of a process: lists of its stages follow."""

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import ClassVar

from typing_extensions import override

from pipetrain.engine.errors import check_whole
from pipetrain.engine.schedules.base import Family, ListSchedule
from pipetrain.engine.schedules.operation import Operation, update
from pipetrain.engine.schedules.placement import Placement, check_divides

StageOperation = tuple[int, Operation]
"""(stage, its operation)."""


class ProcessSchedule(ListSchedule):
    """A schedule that gives every process a list of operations of its stages.

    A new one defines `placement`, `of_process` and `in_flight`. p is the process, and P their number: D / `chunks`.

    Attributes:
        chunks: v, the stages of each process.
    """

    chunks: int

    @override
    def check(self, D: int, N: int) -> None:
        check_divides(self.name, D, self.chunks)

    @abstractmethod
    def of_process(self, p: int, D: int, N: int, M: int) -> Iterable[StageOperation]:
        """The list of a process for M minibatches of N microbatches."""

    @override
    def operations(self, r: int, D: int, N: int, M: int) -> list[Operation]:
        p = self.placement(D).process_of(r)
        return [op for stage, op in _listed(self, p, D, N, M) if stage == r]

    @override
    def order(self, process: int, D: int, N: int, M: int) -> list[int]:
        return [stage for stage, _ in _listed(self, process, D, N, M)]


class DrainedProcessSchedule(ProcessSchedule):
    """One that fills and drains for each minibatch, and defines `of_minibatch` in place of `of_process`."""

    family: ClassVar[Family] = Family.SYNCHRONOUS

    @abstractmethod
    def of_minibatch(self, p: int, D: int, N: int) -> Iterable[StageOperation]:
        """The list of a process for minibatch 0, without the updates at its end."""

    @override
    def of_process(self, p: int, D: int, N: int, M: int) -> Iterable[StageOperation]:
        listed, stages = list(self.of_minibatch(p, D, N)), self.placement(D).stages_of[p]
        for t in range(M):
            yield from ((stage, op.moved(t)) for stage, op in listed)
            yield from ((stage, update(t)) for stage in stages)


class Looped(ProcessSchedule):
    """One in which process p has the stages p, p + P, and so on: `chunks` of them.

    `for_one` says what to use for a single one.
    """

    for_one: ClassVar[str]

    def __post_init__(self) -> None:
        check_whole("schedule.chunks", self.chunks, least=2, otherwise=f"as {self.for_one}")

    @override
    def placement(self, D: int) -> Placement:
        return Placement.looped(D, self.chunks)


class VShaped(ProcessSchedule):
    """One in which process p has stages p and D - 1 - p, so that a microbatch turns back in the last process."""

    chunks: int = 2

    @override
    def placement(self, D: int) -> Placement:
        return Placement.v_shaped(D)


@lru_cache(maxsize=8)  # each stage of a process asks, and its order; lists of long epochs are large
def _listed(schedule: ProcessSchedule, p: int, D: int, N: int, M: int) -> Sequence[StageOperation]:
    return list(schedule.of_process(p, D, N, M))
