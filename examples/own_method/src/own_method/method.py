"""A method: weight stashing, with a smaller learning rate on stages whose gradients are staler."""

from dataclasses import dataclass

from pipetrain import Family, Method, ReadContext, StageContext, WeightRead
from typing_extensions import override


@dataclass(frozen=True)
class OwnMethod(Method):
    """F reads the newest weights and B those that its F read, as in PipeDream; learning rates depend on the stage.

    To make another method of it, change what these functions return. docs/add-a-method.md of pipetrain lists all.

    Attributes:
        power: the learning rate of a stage is divided by (1 + delay) ** power; 0 for PipeDream.
    """

    name = "own_method"
    family = Family.CONTINUOUS  # the schedules that it works with
    power: float = 0.5

    @override
    def forward(self, at: ReadContext) -> WeightRead:
        return WeightRead(at.newest)

    @override
    def backward(self, at: ReadContext, forward: WeightRead) -> WeightRead:
        return forward

    @override
    def weight_versions(self, context: StageContext) -> int:
        return context.delay + 1

    @override
    def learning_rate_scale(self, context: StageContext, update: int) -> float:
        return float((1 + context.delay) ** -self.power)
