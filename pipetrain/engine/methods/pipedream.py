"""Weight stashing: B reads the very version that F read (PipeDream § 3.3)."""

from dataclasses import dataclass
from typing import ClassVar

from typing_extensions import override

from pipetrain.engine.methods.base import Method
from pipetrain.engine.program.weight_reads import ReadContext, StageContext, WeightRead
from pipetrain.engine.schedules.base import Family


@dataclass(frozen=True)
class PipeDream(Method):
    """F reads the newest weights, B the weights that F read; up to D versions on stage 0.

    Attributes:
        vertical_sync: every stage reads the version that stage 0 read for the microbatch.
    """

    name: ClassVar[str] = "pipedream"
    family: ClassVar[Family] = Family.CONTINUOUS
    vertical_sync: bool = False

    @property
    @override
    def needs_even_replicas(self) -> bool:
        return self.vertical_sync

    @override
    def forward(self, at: ReadContext) -> WeightRead:
        return WeightRead(at.entry if self.vertical_sync else at.newest)

    @override
    def backward(self, at: ReadContext, forward: WeightRead) -> WeightRead:
        return forward

    @override
    def weight_versions(self, context: StageContext) -> int:
        """Number of updates that a stashed version waits for, plus one."""
        return (context.entry_delay if self.vertical_sync else context.delay) + 1
