"""Layer-wise adaptive rate scaling, for large minibatches (You, Gitman & Ginsburg 2017, arXiv 1708.03888)."""

from collections.abc import Iterable

import torch
from torch import Tensor
from torch.optim import Optimizer
from typing_extensions import override

from pipetrain.engine.number_range import BELOW_ONE, NOT_NEGATIVE, POSITIVE


class LARS(Optimizer):
    """SGD with momentum and a separate rate for each weight: the ratio of its norm to its gradient's.

    v ← m·v + γ·λ·(g + β·w), w ← w - v, with λ = η·‖w‖ / (‖g‖ + β·‖w‖) (algorithm 1). Where a weight or its gradient is
    zero, as biases are at first, λ is 1, or the weight would never move.

    Args:
        params: the weights.
        lr: γ.
        momentum: m.
        weight_decay: β.
        trust: η, the share of a weight that a step of rate 1 changes.

    Raises:
        ConfigError: a number is out of its range.
    """

    def __init__(
        self,
        params: Iterable[Tensor],
        lr: float = 0.1,
        momentum: float = 0.9,
        weight_decay: float = 5e-4,
        trust: float = 0.001,
    ) -> None:
        BELOW_ONE.check("optimizer.momentum", momentum)
        NOT_NEGATIVE.check("optimizer.weight_decay", weight_decay)
        POSITIVE.check("optimizer.trust", trust)
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "trust": trust})

    @override
    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """One step of every weight that has a gradient; takes no closure."""
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    self._move(weight, weight.grad, group)

    def _move(self, weight: Tensor, gradient: Tensor, group: dict[str, float]) -> None:
        decay = group["weight_decay"]
        rate = local_rate(weight, gradient, group["trust"], decay)
        change = gradient.add(weight, alpha=decay).mul_(rate * group["lr"])
        buffer = self.state[weight].get("momentum_buffer")
        if buffer is None:
            buffer = self.state[weight]["momentum_buffer"] = change
        else:
            buffer.mul_(group["momentum"]).add_(change)
        weight.sub_(buffer)


def local_rate(weight: Tensor, gradient: Tensor, trust: float, decay: float) -> Tensor:
    """λ of one weight, a scalar on its device (eq. 6)."""
    of_weight, of_gradient = weight.norm(), gradient.norm()
    ratio = trust * of_weight / (of_gradient + decay * of_weight)
    return torch.where((of_weight > 0) & (of_gradient > 0), ratio, torch.ones_like(ratio))
