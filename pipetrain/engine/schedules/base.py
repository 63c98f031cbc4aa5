"""Base classes of schedules: pure functions from a stage's place in the pipeline to its finite list of operations."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from enum import StrEnum
from typing import Any, ClassVar

from typing_extensions import override

from pipetrain.engine.schedules.operation import Operation, update
from pipetrain.engine.schedules.placement import Placement
from pipetrain.engine.schedules.replicas import Replicas


class Family(StrEnum):
    """Compatibility class: a method works with every schedule of its family."""

    SYNCHRONOUS = "synchronous"
    """Drained at every minibatch."""
    CONTINUOUS = "continuous"
    """Never drained between minibatches; one update after every N-th backward."""
    DOUBLE_BUFFERED = "double-buffered"
    """Continuous, with enough microbatches (N ≥ D) that two versions suffice."""
    WHOLE_BACKWARD = "whole-backward"
    """Continuous; microbatches go forward one by one, and back as one minibatch."""


class Schedule(ABC):
    """Says when each stage does what. Knows nothing of tensors, processes or methods.

    r is the stage, D the number of stages, N the microbatches of a minibatch.
    """

    name: ClassVar[str]
    family: ClassVar[Family]
    splits_backward: ClassVar[bool] = False
    """True if every backward of a microbatch is two operations: B, then W."""
    executor: ClassVar[str | None] = None
    """Dotted path of the executor of a schedule without lists, imported when a run connects its stages."""

    @property
    def synchronous(self) -> bool:
        """True if every stage finishes its update before it starts a forward of the next minibatch."""
        return self.family is Family.SYNCHRONOUS

    def check(self, D: int, N: int) -> None:  # noqa: B027  (most run anywhere)
        """Checks that it runs on D stages with N microbatches.

        Raises:
            ConfigError: it does not.
        """

    def placement(self, D: int) -> Placement:
        """Assignment of D stages to processes."""
        return Placement.one_each(D)

    @abstractmethod
    def delay(self, r: int, D: int, N: int) -> int:
        """Updates that stage r makes, at most, between a minibatch's forward and the update with its gradient."""

    def replicas(self, D: int) -> Replicas:
        """Number of workers of each of D stages."""
        return Replicas.one_each(D)

    def check_run(self, settings: Any, loader: Any) -> None:  # noqa: B027  (lists run under all settings)
        """Checks the settings of a run, and the loader of its training data, against the limits of a library.

        Raises:
            ConfigError: the first setting that cannot work.
        """

    def notes(self, D: int) -> list[str]:  # noqa: ARG002  (lists need none)
        """Notes to print before a run on D stages, one line each."""
        return []

    def rate_scale(self, r: int) -> float:  # noqa: ARG002  (without replicas all stages are alike)
        """Factor by which stage r scales its learning rate to account for its replicas."""
        return 1.0


class ListSchedule(Schedule):
    """A schedule that gives every stage a list of operations, which the executors carry out.

    A new one defines `name`, `family`, `in_flight` and `operations`; the other methods follow from these. A list covers
    the M minibatches between two drains.
    """

    @abstractmethod
    def in_flight(self, r: int, D: int, N: int) -> int:
        """Forwards (microbatches) that stage r has started and not finished backward, in steady state."""

    @abstractmethod
    def operations(self, r: int, D: int, N: int, M: int) -> list[Operation]:
        """The list of stage r for M minibatches of N microbatches."""

    def steady_cycle(self, r: int, D: int, N: int) -> list[Operation]:
        """Operations of stage r from one update, exclusive, to the next in steady state.

        Minibatches count from the second update's, so the update is U0, and a forward may be F2.0. By default
        they are read off the list; a closed form serves where that is long.
        """
        t = -(-self.in_flight(r, D, N) // N) + 1
        return cycle_ending(self.operations(r, D, N, 2 * t + 1), t)

    def order(self, process: int, D: int, N: int, M: int) -> list[int]:
        """Stages of a process, one for each operation of their lists, in the order in which it takes them.

        Lists of M minibatches begin like longer ones: operations of further minibatches left out, the rest keeps its
        order. With one stage in each process there is nothing to define.
        """
        (stage,) = self.placement(D).stages_of[process]
        return [stage] * len(self.operations(stage, D, N, M))

    def of_worker(self, worker: int, D: int, N: int, M: int) -> list[Operation]:
        """The list of a worker; without replicas workers are stages."""
        return self.operations(worker, D, N, M)

    def newest_at_forward(self, r: int, D: int, N: int, t: int, j: int) -> int:
        """Updates that stage r has made when F(t, j) starts: t, or if continuous max(0, floor((k - d) / N)).

        k = tN + j, d = in-flight(r) - 1. A closed form, so that what ran can be held against it.
        """
        if self.synchronous:
            return t
        return max(0, (t * N + j - (self.in_flight(r, D, N) - 1)) // N)

    @override
    def delay(self, r: int, D: int, N: int) -> int:
        return 0 if self.synchronous else -(-(self.in_flight(r, D, N) - 1) // N)


def cycle_ending(operations: Sequence[Operation], t: int) -> list[Operation]:
    """Operations after the update of minibatch t - 1, up to the update of t; minibatches are counted from t."""
    begin, end = operations.index(update(t - 1)) + 1, operations.index(update(t)) + 1
    return [op.moved(-t) for op in operations[begin:end]]
