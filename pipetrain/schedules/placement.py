"""Which process has which stages."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Placement:
    """The stages of each process.

    Attributes:
        stages_of: process -> its stages, ascending; every stage is in one process.
    """

    stages_of: tuple[tuple[int, ...], ...]

    @classmethod
    def one_each(cls, D: int) -> "Placement":
        """Stage r in process r."""
        return cls(tuple((r,) for r in range(D)))

    @classmethod
    def loop(cls, D: int, num_processes: int) -> "Placement":
        """Stage r in process r mod `processes`: a microbatch goes round."""
        return cls(tuple(tuple(range(p, D, num_processes)) for p in range(num_processes)))

    @classmethod
    def v(cls, D: int) -> "Placement":
        """Stages p and D - 1 - p in process p: a microbatch goes there and back."""
        return cls(tuple((p, D - 1 - p) for p in range(D // 2)))

    @property
    def num_processes(self) -> int:
        """How many."""
        return len(self.stages_of)

    def process_of(self, stage: int) -> int:
        """The process that has the stage."""
        return next(p for p, mine in enumerate(self.stages_of) if stage in mine)

    @property
    def of_last_stage(self) -> int:
        """The process in which losses and metrics are known."""
        return self.process_of(max(max(mine) for mine in self.stages_of))

    def in_order(self, values: Sequence[Sequence[T]]) -> list[T]:
        """What each process says of its stages, in their order -> the same by stage."""
        by_stage = {
            r: value
            for mine, theirs in zip(self.stages_of, values, strict=True)
            for r, value in zip(mine, theirs, strict=True)
        }
        return [by_stage[r] for r in sorted(by_stage)]

    def name(self, process: int) -> str:
        """What messages call a process: `stage 2`, `stages 0 and 3`."""
        mine = self.stages_of[process]
        return f"stage{'s' if len(mine) > 1 else ''} {' and '.join(map(str, mine))}"
