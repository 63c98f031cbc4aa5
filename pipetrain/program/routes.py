"""Which stage an operation has its input from."""

from dataclasses import dataclass

from pipetrain.program.recomputation import RecomputeSegments
from pipetrain.schedules.operation import Kind, Operation


@dataclass(frozen=True)
class Routes:
    """The way of the messages between the stages of a pipeline.

    Attributes:
        num_stages: D.
        segments: which stages recompute together, if any recompute.
    """

    num_stages: int
    segments: RecomputeSegments | None = None

    def sender(self, r: int, op: Operation) -> int | None:
        """The stage whose operation of the same name stage r waits for.

        F needs the F of the same microbatch one stage before, B its B one stage behind, and R the R of the stage
        before where that is of the same segment.
        """
        if op.kind is Kind.FORWARD and r > 0:
            return r - 1
        if op.kind is Kind.BACKWARD and r < self.num_stages - 1:
            return r + 1
        if op.kind is Kind.RECOMPUTATION and self.segments is not None and not self.segments.begins(r):
            return r - 1
        return None
