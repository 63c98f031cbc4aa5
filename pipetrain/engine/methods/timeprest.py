"""TiMePReSt: one version through all stages in the forward, the newest weights in the backward."""

from typing import ClassVar

from typing_extensions import override

from pipetrain.engine.methods.base import Method
from pipetrain.engine.program.weight_reads import ReadContext, StageContext, WeightRead
from pipetrain.engine.schedules.base import Family


class TiMePReSt(Method):
    """F reads on every stage the version that stage 0 read, B the newest weights (TiMePReSt § 3)."""

    name: ClassVar[str] = "timeprest"
    family: ClassVar[Family] = Family.WHOLE_BACKWARD

    @property
    @override
    def needs_even_replicas(self) -> bool:
        return True

    @override
    def forward(self, at: ReadContext) -> WeightRead:
        return WeightRead(at.entry)

    @override
    def weight_versions(self, context: StageContext) -> int:
        """r + 1: a stage keeps what minibatches on their way to it will read."""
        return context.entry_delay - context.delay + 1


class VTiMePReSt(Method):
    """The newest weights in F and in B: one version, nothing stashed (V-TiMePReSt)."""

    name: ClassVar[str] = "v_timeprest"
    family: ClassVar[Family] = Family.WHOLE_BACKWARD
