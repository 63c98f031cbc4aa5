"""Two buffered weight versions on every stage: PipeDream-2BW."""

from typing import ClassVar

from typing_extensions import override

from pipetrain.engine.methods.base import Method
from pipetrain.engine.program.weight_reads import ReadContext, StageContext, WeightRead
from pipetrain.engine.schedules.base import Family


class PipeDream2BW(Method):
    """Minibatch t reads W_max(0, t-1) in F and B alike, so W_{t+1} = W_t - lr·Δ(∇f(W_{t-1})) (PipeDream-2BW)."""

    name: ClassVar[str] = "pipedream_2bw"
    family: ClassVar[Family] = Family.DOUBLE_BUFFERED

    @override
    def forward(self, at: ReadContext) -> WeightRead:
        return WeightRead(max(0, at.update - 1))

    @override
    def backward(self, at: ReadContext, forward: WeightRead) -> WeightRead:
        return forward

    @override
    def weight_versions(self, context: StageContext) -> int:
        return 2
