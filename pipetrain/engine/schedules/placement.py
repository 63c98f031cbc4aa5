"""Assignment of stages to processes."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from operator import itemgetter
from typing import TypeVar

from pipetrain.engine.errors import ConfigError

T = TypeVar("T")


@dataclass(frozen=True)
class Placement:
    """The stages of each process.

    Attributes:
        stages_of: process -> its stages, ascending; every stage is in one process, or alone in one for each of its
            replicas.
    """

    stages_of: tuple[tuple[int, ...], ...]

    @classmethod
    def one_each(cls, D: int) -> "Placement":
        """Stage r in process r."""
        return cls(tuple((r,) for r in range(D)))

    @classmethod
    def looped(cls, D: int, chunks: int) -> "Placement":
        """Stage r in process r mod P, with P = D / `chunks` (Narayanan et al. 2021, *Megatron-LM*, § 2.2)."""
        processes = D // chunks
        return cls(tuple(tuple(range(p, D, processes)) for p in range(processes)))

    @classmethod
    def v_shaped(cls, D: int) -> "Placement":
        """Stages p and D - 1 - p in process p: a microbatch passes the processes forth and back, in a V."""
        return cls(tuple((p, D - 1 - p) for p in range(D // 2)))

    @property
    def num_processes(self) -> int:
        """Number of processes."""
        return len(self.stages_of)

    def process_of(self, stage: int) -> int:
        """The process that has the stage, or its first replica."""
        return self._process_of[stage]

    @cached_property
    def _process_of(self) -> dict[int, int]:
        places = [(r, p) for p, stages in enumerate(self.stages_of) for r in stages]
        return dict(reversed(places))  # of replicas the first stays

    def crosses(self, stage: int) -> bool:
        """True if the next stage is in another process."""
        return self.process_of(stage) != self.process_of(stage + 1)

    @property
    def several(self) -> bool:
        """True if some process has more than one stage."""
        return max(map(len, self.stages_of)) > 1

    @property
    def of_last_stage(self) -> int:
        """The process in which losses and metrics are known."""
        return self.process_of(max(map(max, self.stages_of)))

    def in_order(self, values: Sequence[Sequence[T]]) -> list[T]:
        """Values of all stages in order, one for each replica, from the values of each process for its stages."""
        by_stage = zip(chain.from_iterable(self.stages_of), chain.from_iterable(values), strict=True)
        return [value for _, value in sorted(by_stage, key=itemgetter(0))]

    def sums(self, values: Sequence[float]) -> list[float]:
        """For each stage, the sum of the values of all stages in its process; no stage has replicas."""
        totals = [sum(values[r] for r in stages) for stages in self.stages_of]
        return [totals[self.process_of(r)] for r in range(len(values))]

    def replica_of(self, process: int) -> int:
        """The number of a process among those that have its stage."""
        return self.stages_of[:process].count(self.stages_of[process])

    def name(self, process: int) -> str:
        """Name of a process in messages: `stage 2`, `stages 0 and 3`, `stage 1, replica 0`."""
        stages = self.stages_of[process]
        replica = f", replica {self.replica_of(process)}" if self.stages_of.count(stages) > 1 else ""
        return f"stage{'s' if len(stages) > 1 else ''} {' and '.join(map(str, stages))}{replica}"


def check_divides(schedule: str, D: int, chunks: int) -> None:
    """Checks that D stages fill processes of `chunks` stages.

    Raises:
        ConfigError: the last process would have fewer.
    """
    if D % chunks:
        near = {max(1, D // chunks + more) * chunks for more in (0, 1)}
        raise ConfigError(
            f"partition.stages={D}: schedule={schedule} places {chunks} stages in each process; "
            f"partition.stages={' or '.join(map(str, sorted(near)))} works"
        )
