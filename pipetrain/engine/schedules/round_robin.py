"""A schedule on replicated stages: minibatches go to the replicas of a stage in turn (PipeDream's 1F1B-RR)."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

from typing_extensions import override

from pipetrain.engine.errors import ConfigError
from pipetrain.engine.schedules.base import Family, ListSchedule, cycle_ending
from pipetrain.engine.schedules.operation import Kind, Operation, update
from pipetrain.engine.schedules.placement import Placement
from pipetrain.engine.schedules.replicas import Replicas


class UnevenReplicas(ABC):
    """Interface of a continuous `ListSchedule` that can run with different numbers of replicas per stage.

    The workers of a stage then differ from those of a pipeline without replicas in the length of their warm-up alone.
    """

    @abstractmethod
    def uneven_in_flight(self, behind: int, replicas: int, N: int) -> int:
        """Microbatches in flight on a worker; those behind the first minibatch's first are whole minibatches.

        Args:
            behind: W - 1, the workers from this stage to the last except one: without replicas D - 1 - r.
            replicas: R, the workers of its stage.
            N: microbatches of a minibatch.

        Raises:
            ConfigError: the schedule as configured needs the same number of replicas of every stage.
        """

    @abstractmethod
    def operations_in_flight(self, in_flight: int, N: int, M: int) -> list[Operation]:
        """The list of a worker with `in_flight` microbatches in flight, for M minibatches."""


@dataclass(frozen=True)
class RoundRobin(ListSchedule):
    """Runs another schedule, made for one worker per stage, on each replica with the replica's own minibatches.

    An update follows each round, once the backwards of all its minibatches have ended, on every replica of the stage.
    U(t) is named after the last minibatch of its round; a replica without a minibatch in a last, short round has the
    update alone.

    Attributes:
        scale_lr: True if the learning rate of a stage is multiplied by its replicas divided by stage 0's.
    """

    each: ListSchedule
    workers: Replicas
    scale_lr: bool = True

    @property
    @override
    def name(self) -> str:  # type: ignore[override]
        return self.each.name

    @property
    @override
    def family(self) -> Family:  # type: ignore[override]
        return self.each.family

    @override
    def check(self, D: int, N: int) -> None:
        self.each.check(D, N)
        if self.each.splits_backward or self.each.placement(D).several:
            why = "splits backwards" if self.each.splits_backward else "places several stages in each process"
            other = "1f1b_flush" if self.synchronous else "1f1b"
            raise ConfigError(
                f"partition.replicas={list(self.workers.counts)}: schedule={self.name} {why}, and such stages have no "
                f"replicas; leave partition.replicas out, or use schedule={other}"
            )
        if self.workers.train_alone and not (self.workers.even and self.workers.several):
            raise ConfigError(
                f"averaging.average=weights: partition.replicas={list(self.workers.counts)}: replicas that train alone "
                "need a whole pipeline each, so the same number for every stage, and more than one"
            )
        self.in_flight(0, D, N)

    @override
    def replicas(self, D: int) -> Replicas:
        return self.workers

    @override
    def placement(self, D: int) -> Placement:
        return Placement(tuple((stage,) for stage, _ in self.workers.places))

    @override
    def rate_scale(self, r: int) -> float:
        return self.workers.counts[r] / self.workers.counts[0] if self.scale_lr else 1.0

    @property
    def _keeps_lists(self) -> bool:
        """True if each replica runs the list of its schedule unchanged, on its own minibatches."""
        return self.workers.even or self.synchronous

    @property
    def _uneven(self) -> UnevenReplicas:
        """The schedule of a replica if the stages' replica counts differ."""
        if not isinstance(self.each, UnevenReplicas):
            raise ConfigError(
                f"partition.replicas: schedule={self.name} requires equal replica counts; schedule=1f1b, "
                "pipelined_backprop, pipemare, nf1b and the synchronous schedules allow unequal ones"
            )
        return self.each

    @override
    def in_flight(self, r: int, D: int, N: int) -> int:
        """Microbatches on each replica.

        If all stages have the same number of replicas, as many as without replicas. Otherwise whole minibatches are
        ahead, as each goes to a separate worker.
        """
        if self._keeps_lists:
            return self.each.in_flight(r, D, N)
        return self._uneven.uneven_in_flight(self.workers.behind(r), self.workers.counts[r], N)

    @override
    def newest_at_forward(self, r: int, D: int, N: int, t: int, j: int) -> int:
        """Newest version in the schedule of a replica, whose own minibatches and updates both count rounds."""
        own = self.workers.round_of(r, t)
        if self._keeps_lists:
            return self.each.newest_at_forward(r, D, N, own, j)
        return max(0, own - self.delay(r, D, N))

    @override
    def delay(self, r: int, D: int, N: int) -> int:
        return self.each.delay(r, D, N) if self._keeps_lists else (self.in_flight(r, D, N) - 1) // N

    @override
    def steady_cycle(self, r: int, D: int, N: int) -> list[Operation]:
        """Operations of each replica from one update to the next; minibatches count only its own, one per round."""
        if self._keeps_lists:
            return self.each.steady_cycle(r, D, N)
        t = self.delay(r, D, N) + 1
        return cycle_ending(self._own_list(r, D, N, 2 * t + 1), t)

    def _own_list(self, r: int, D: int, N: int, M: int) -> list[Operation]:
        """The list of a replica for M minibatches of its own, before these get their numbers in the whole pipeline."""
        if self._keeps_lists:
            return self.each.operations(r, D, N, M)
        return self._uneven.operations_in_flight(self.in_flight(r, D, N), N, M)

    @override
    def operations(self, r: int, D: int, N: int, M: int) -> list[Operation]:
        """The list of replica 0 of stage r."""
        return self.of_worker(self.workers.workers_of(r)[0], D, N, M)

    @override
    def of_worker(self, worker: int, D: int, N: int, M: int) -> list[Operation]:
        r = self.workers.stage_of(worker)
        own, ends = self.workers.own(worker, M), self.workers.round_ends(r, M)
        listed = [
            update(ends[op.minibatch]) if op.kind is Kind.UPDATE else op.moved(own[op.minibatch] - op.minibatch)
            for op in self._own_list(r, D, N, len(own))
        ]
        return listed + [update(end) for end in ends[len(own) :]]
