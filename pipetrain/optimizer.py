"""A stage's optimizer: torch.optim's, with its learning rate, clipping, and the step that it would take next (Δ)."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer

from pipetrain.errors import ConfigError

Rate = Callable[[int], float]
"""The learning rate of the stage's update number k, from 0."""

LAST_GRADIENT = "last_gradient"


class StageOptimizer:
    """Applies one minibatch's gradient to a stage's parameters, and says which step would come next.

    Args:
        build: makes the torch optimizer from a list of parameters.
        parameters: name -> parameter, those that require a gradient; may be empty.
        rate: the learning rate of update k.
        updates: how many updates the parameters have behind them.
    """

    def __init__(
        self,
        build: Callable[[list[nn.Parameter]], Optimizer],
        parameters: Mapping[str, nn.Parameter],
        rate: Rate,
        updates: int = 0,
    ) -> None:
        self.parameters = dict(parameters)
        # torch's optimizers refuse an empty list, and a stage of pooling layers has nothing to optimize
        self.optimizer = build(list(self.parameters.values())) if self.parameters else None
        self.rate = rate
        self.updates = updates
        self._keeps_gradient = isinstance(self.optimizer, SGD) and not self.optimizer.defaults["momentum"]

    @property
    def next_learning_rate(self) -> float:
        """The learning rate of the stage's next update."""
        return self.rate(self.updates)

    def step(self, gradients: Mapping[str, Tensor]) -> None:
        """One update; a parameter without a gradient is skipped, as in plain torch training."""
        if self.optimizer is not None:
            for group in self.optimizer.param_groups:
                group["lr"] = self.next_learning_rate
            for name, gradient in gradients.items():
                self.parameters[name].grad = gradient
            self.optimizer.step()
            for name, gradient in gradients.items():
                self.parameters[name].grad = None
                if self._keeps_gradient:
                    self.optimizer.state[self.parameters[name]][LAST_GRADIENT] = gradient
        self.updates += 1

    def deltas(self) -> dict[str, Tensor]:
        """Δ of every parameter that has one: the next step per unit of learning rate, from present state alone.

        A parameter never updated has none: its Δ is 0.

        Raises:
            ConfigError: the optimizer has no prediction rule.
        """
        if self.optimizer is None:
            return {}
        rule = prediction_rule(self.optimizer)
        group = self.optimizer.param_groups[0]
        found = {name: rule(self.optimizer.state[p], group) for name, p in self.parameters.items()}
        return {name: delta for name, delta in found.items() if delta is not None}

    def state(self) -> dict[str, dict[str, Tensor]]:
        """Parameter name -> state name -> tensor; numbers become tensors, so that a checkpoint can hold them."""
        if self.optimizer is None:
            return {}
        return {
            name: {key: torch.as_tensor(value) for key, value in self.optimizer.state[p].items() if value is not None}
            for name, p in self.parameters.items()
            if self.optimizer.state[p]
        }

    def load_state(self, state: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Puts back what `state` gave, for the parameters of this stage."""
        for name, values in state.items():
            if self.optimizer is not None:
                self.optimizer.state[self.parameters[name]] = dict(values)


Rule = Callable[[Mapping[str, Any], Mapping[str, Any]], Tensor | None]


def sgd_delta(state: Mapping[str, Any], group: Mapping[str, Any]) -> Tensor | None:
    """The momentum buffer; without momentum the last gradient (PipeOptim, table I)."""
    delta: Tensor | None = state.get("momentum_buffer") if group["momentum"] else state.get(LAST_GRADIENT)
    return delta


def adam_delta(state: Mapping[str, Any], group: Mapping[str, Any]) -> Tensor | None:
    """m̂ / (sqrt(v̂) + ε) with the bias corrections of the last step (PipeOptim, table I; ε outside the root)."""
    if "exp_avg" not in state:
        return None
    step = float(state["step"])
    beta1, beta2 = group["betas"]
    denominator = (state["exp_avg_sq"].sqrt() / (1 - beta2**step) ** 0.5).add_(group["eps"])
    delta: Tensor = (state["exp_avg"] / (1 - beta1**step)).div_(denominator)
    return delta


PREDICTION_RULES: dict[type[Optimizer], Rule] = {SGD: sgd_delta, Adam: adam_delta, AdamW: adam_delta}
"""AdamW's decoupled decay is no part of Δ, as in the paper."""

_VARIANTS = ("nesterov", "amsgrad", "maximize")


def prediction_rule(optimizer: Optimizer) -> Rule:
    """The function that gives Δ for this optimizer.

    Raises:
        ConfigError: there is none.
    """
    known = ", ".join(kind.__name__ for kind in PREDICTION_RULES)
    rule = PREDICTION_RULES.get(type(optimizer))
    if rule is None:
        raise ConfigError(f"optimizer {type(optimizer).__name__} has no prediction rule; those that have one: {known}")
    for variant in _VARIANTS:
        if optimizer.defaults.get(variant):
            raise ConfigError(
                f"optimizer.{variant}=true has no prediction rule; plain {known} have one (optimizer.{variant}=false)"
            )
    return rule


def squared_norm(gradients: Mapping[str, Tensor]) -> Tensor:
    """Sum of squares over a stage's gradients, a float32 scalar."""
    if not gradients:
        return torch.zeros(())
    norms = torch._foreach_norm(list(gradients.values()))
    return torch.stack([norm.float() for norm in norms]).square().sum()


def clipped(gradients: Mapping[str, Tensor], squared_norms: Sequence[Tensor], limit: float) -> dict[str, Tensor]:
    """The gradients scaled so that the norm over all `squared_norms` is at most `limit`, as torch's clip_grad_norm_.

    Makes new tensors: several outputs of autograd may be one tensor.
    """
    total = torch.stack([norm.cpu() for norm in squared_norms]).sum().sqrt()
    factor = torch.clamp(limit / (total + 1e-6), max=1.0).item()
    return {name: gradient * factor for name, gradient in gradients.items()}
