"""Changes of a version's weights that a method reads in its place: predicted, corrected, scaled."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from typing_extensions import override

from pipetrain.engine.program.weight_reads import WeightTransform
from pipetrain.engine.weights.statistic import UpdateAverage

if TYPE_CHECKING:
    from torch import Tensor

    from pipetrain.engine.weights.versions import Weights, WeightVersion


PREDICTIONS = ("constant", "scheduled", "decaying")


@dataclass(frozen=True, slots=True)
class Predicted(WeightTransform):
    """W - steps · lr · Δ, the weights after `steps` more updates with the next one's lr and Δ (PipeOptim eq. 4).

    lr and Δ belong to each weight's parameter group.

    Attributes:
        form: how it predicts: `constant` as above; `scheduled` with the sum of the next rates instead of steps · lr;
            `decaying` by the steps that the optimizer would make if all gradients were 0.
    """

    steps: int
    form: str = "constant"

    @override
    def __str__(self) -> str:
        return f"+{self.steps}"

    @override
    def apply(self, version: "WeightVersion", weights: "Weights") -> "dict[str, Tensor]":
        optimizer = weights.optimizer
        if self.form == "decaying":
            moves = optimizer.decaying_steps(self.steps, version.tensors)
            return _moved_along(version, weights, moves, dict.fromkeys(moves, -1))
        if self.form == "scheduled":
            factors = {name: -sum(rates) for name, rates in optimizer.coming_learning_rates(self.steps).items()}
        else:
            factors = {name: -self.steps * rate for name, (rate,) in optimizer.coming_learning_rates(1).items()}
        return _moved_along(version, weights, optimizer.deltas(), factors)


def predicted(steps: int, form: str = "constant") -> Predicted | None:
    """The prediction `steps` updates ahead; None for 0."""
    return Predicted(steps, form) if steps else None


@dataclass(frozen=True, slots=True)
class Corrected(WeightTransform):
    """W - steps · δ: the weights `steps` updates ago, estimated by the running average of changes (PipeMare T2).

    A negative number estimates the weights after the next updates.
    """

    steps: int

    @override
    def __str__(self) -> str:
        return f"{-self.steps:+d}δ"

    @override
    def apply(self, version: "WeightVersion", weights: "Weights") -> "dict[str, Tensor]":
        if not isinstance(weights.statistic, UpdateAverage):
            raise RuntimeError(
                f"{self} needs the running average of weight changes; Method.statistic keeps none or another"
            )
        average = weights.statistic.average
        return _moved_along(version, weights, average, dict.fromkeys(average, -self.steps))


class StashedCorrection(Corrected):
    """The same, computed by F and kept for its B: by then the average is another."""

    __slots__ = ()
    stashed: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class Scaled(WeightTransform):
    """factor · W (I-TiMePReSt), of the weights that are trained."""

    passes: ClassVar[int] = 2
    factor: float

    @override
    def __str__(self) -> str:
        return f"*{self.factor:.4g}"

    @override
    def apply(self, version: "WeightVersion", weights: "Weights") -> "dict[str, Tensor]":
        import torch

        from pipetrain.engine.device_queue import queued

        # a frozen weight never becomes stale
        own = {name: version.tensors[name] for name in weights.optimizer.parameters}
        if queued(own):  # where launching an operation for each would take longer than carrying it out
            scaled = weights.pool.copy(own)
            torch._foreach_mul_(list(scaled.values()), self.factor)
            return scaled
        scaled = weights.pool.empty_like(own)
        for name, tensor in own.items():
            torch.mul(tensor, self.factor, out=scaled[name])
        return scaled


def _moved_along(
    version: "WeightVersion", weights: "Weights", directions: "Mapping[str, Tensor]", factors: Mapping[str, float]
) -> "dict[str, Tensor]":
    import torch

    from pipetrain.engine.device_queue import queued

    start = {name: version.tensors[name] for name in directions}
    if queued(start):
        shifted = weights.pool.copy(start)
        for factor in dict.fromkeys(factors[name] for name in directions):
            names = [name for name in directions if factors[name] == factor]
            torch._foreach_add_([shifted[name] for name in names], [directions[name] for name in names], alpha=factor)
        return shifted
    shifted = weights.pool.empty_like(start)
    for name, direction in directions.items():
        torch.add(version.tensors[name], direction, alpha=factors[name], out=shifted[name])
    return shifted
