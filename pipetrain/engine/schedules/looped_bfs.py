"""Breadth-first: all microbatches pass a stage of a process before the first enters its next."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from typing_extensions import override

from pipetrain.engine.schedules.operation import backward, forward
from pipetrain.engine.schedules.process_lists import DrainedProcessSchedule, Looped, StageOperation


@dataclass(frozen=True)
class LoopedBFS(Looped, DrainedProcessSchedule):
    """GPipe over several stages per process (Lamy-Poirier 2022, *Breadth-First Pipeline Parallelism*).

    Backwards come in the order of the forwards, so gradients add up as under GPipe.

    Attributes:
        chunks: v, the stages of each process: r, r + P, and so on. The bubble is that of `interleaved_1f1b`, and N may
            be any number; all N activations are held.
    """

    name: ClassVar[str] = "looped_bfs"
    for_one: ClassVar[str] = "schedule=gpipe has one"
    chunks: int = 2

    @override
    def in_flight(self, r: int, D: int, N: int) -> int:
        return N

    @override
    def of_minibatch(self, p: int, D: int, N: int) -> Iterator[StageOperation]:
        """All forwards of a stage, then those of the next; then the backwards, the last stage first.

        With D = 4, v = 2, N = 3 and equal durations, minibatch 0 is (capitals: stages 2 and 3)::

            stages 0 and 2  f0 f1 f2 F0 F1 F2 .  .  B0 B1 B2 b0 b1 b2
            stages 1 and 3  .  f0 f1 f2 F0 F1 F2 B0 B1 B2 b0 b1 b2
        """
        stages = self.placement(D).stages_of[p]
        for operation, order in ((forward, stages), (backward, stages[::-1])):
            yield from ((stage, operation(0, j)) for stage in order for j in range(N))
