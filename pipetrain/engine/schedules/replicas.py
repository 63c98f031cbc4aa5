"""Number of processes of each stage, and the assignment of minibatches to them."""

from dataclasses import dataclass
from functools import cache, cached_property
from itertools import accumulate


@dataclass(frozen=True)
class Replicas:
    """The workers of a pipeline: for each stage one or several replicas, in order of the stages.

    Minibatch t of a stage with R replicas goes to replica t mod R, forward and backward alike (PipeDream § 3.2). A
    round of that stage is R minibatches, one for each replica, and ends with one update; a drain cuts the last short.

    Attributes:
        counts: R of each stage.
        delay: updates after which replicas that train alone need the weights of each other; None if they average
            gradients in every update.
    """

    counts: tuple[int, ...]
    delay: int | None = None

    @classmethod
    @cache  # each of D stages asks
    def one_each(cls, D: int) -> "Replicas":
        """A worker for each of D stages."""
        return cls((1,) * D)

    @cached_property
    def num_workers(self) -> int:
        """Number of workers of all stages together."""
        return sum(self.counts)

    @cached_property
    def several(self) -> bool:
        """True if some stage has more than one worker."""
        return max(self.counts) > 1

    @property
    def train_alone(self) -> bool:
        """True if each replica updates with its own gradient, False if with the mean over its stage's."""
        return self.delay is not None

    @cached_property
    def even(self) -> bool:
        """True if all stages have the same number of replicas, so that replica i of each forms its own pipeline."""
        return min(self.counts) == max(self.counts)

    @cached_property
    def places(self) -> tuple[tuple[int, int], ...]:
        """(stage, replica) of each worker."""
        return tuple((r, replica) for r, count in enumerate(self.counts) for replica in range(count))

    @property
    def labels(self) -> tuple[str, ...]:
        """Labels of the workers in tables of stages: `1`, or `1.0` for replica 0 of stage 1."""
        return tuple(f"{r}" if self.counts[r] == 1 else f"{r}.{replica}" for r, replica in self.places)

    def stage_of(self, worker: int) -> int:
        """The stage that a worker holds."""
        return self.places[worker][0]

    def workers_of(self, stage: int) -> range:
        """The workers that hold a stage."""
        return range(self._firsts[stage], self._firsts[stage + 1])

    @cached_property
    def _firsts(self) -> tuple[int, ...]:
        return tuple(accumulate(self.counts, initial=0))

    def worker(self, stage: int, minibatch: int) -> int:
        """The worker that a minibatch of a stage goes to."""
        return self.workers_of(stage)[minibatch % self.counts[stage]]

    def behind(self, stage: int) -> int:
        """Number of workers from this stage to the last, not counting one worker of this stage."""
        return self.num_workers - self._firsts[stage] - 1

    def own(self, worker: int, minibatches: int) -> range:
        """Indices of the minibatches, out of `minibatches`, that go to a worker."""
        stage, replica = self.places[worker]
        return range(replica, minibatches, self.counts[stage])

    def round_of(self, stage: int, minibatch: int) -> int:
        """The round of a stage that a minibatch is in, which is the number of updates before it ends."""
        return minibatch // self.counts[stage]

    def round_ends(self, stage: int, minibatches: int) -> list[int]:
        """The last minibatch of each round of a stage."""
        count = self.counts[stage]
        return [min(first + count, minibatches) - 1 for first in range(0, minibatches, count)]

    def name(self, worker: int) -> str:
        """Name of a worker in messages: `stage 1`, or `stage 1, replica 0`."""
        stage, replica = self.places[worker]
        return f"stage {stage}" if self.counts[stage] == 1 else f"stage {stage}, replica {replica}"
