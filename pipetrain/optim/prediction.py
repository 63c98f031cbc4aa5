"""Δ, the step that an optimizer would take next per unit of learning rate, as PipeOptim predicts with it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim import SGD, Adagrad, Adam, AdamW, NAdam, Optimizer, RMSprop

from pipetrain.errors import ConfigError

State = Mapping[str, Any]
"""What an optimizer holds for one parameter: torch's own, and `LAST_GRADIENT` where the rule keeps one."""
Settings = Mapping[str, Any]
"""Those of a parameter group: `lr`, `momentum`, `betas`, ..."""

LAST_GRADIENT = "last_gradient"


def _nothing(_gradient: Tensor, _weight: Tensor, _settings: Settings) -> Tensor | None:
    return None


@dataclass(frozen=True, slots=True)
class DeltaRule:
    """How Δ of one kind of optimizer is found: the step of its last update, from what it holds after it.

    Table I of PipeOptim has three such rules; docs/methods.md derives the others.

    Attributes:
        delta: Δ, of the parameter's shape; None before the first update.
        kept_gradient: what of (gradient, weight), both as they are just before an update, is kept as `LAST_GRADIENT`,
            since `delta` takes it and torch holds it nowhere; None for nothing.
        passes: how often both read or write what is of a weight's size; partitions count this.
    """

    delta: Callable[[State, Settings], Tensor | None]
    kept_gradient: Callable[[Tensor, Tensor, Settings], Tensor | None] = _nothing
    passes: int = 0


def as_seen(gradient: Tensor, weight: Tensor, settings: Settings) -> Tensor:
    """The gradient that an update rule computes with: plus weight decay, unless that is decoupled."""
    decay = 0.0 if settings.get("decoupled_weight_decay") else settings["weight_decay"]
    # a copy in any case: Nesterov's momentum is added onto the gradient itself where torch works on whole lists
    return gradient.add(weight.detach(), alpha=decay) if decay else gradient.clone()


def sgd_delta(state: State, settings: Settings) -> Tensor | None:
    """The momentum buffer v, under Nesterov's g + μ·v; without momentum the last gradient."""
    if not settings["momentum"]:
        return state.get(LAST_GRADIENT)
    buffer: Tensor | None = state.get("momentum_buffer")
    if buffer is None or not settings["nesterov"]:
        return buffer
    gradient: Tensor | None = state.get(LAST_GRADIENT)
    return None if gradient is None else gradient.add(buffer, alpha=settings["momentum"])


def sgd_kept_gradient(gradient: Tensor, weight: Tensor, settings: Settings) -> Tensor | None:
    """Without momentum the gradient by itself, under Nesterov's the one that its update sees."""
    if not settings["momentum"]:
        return gradient
    return as_seen(gradient, weight, settings) if settings["nesterov"] else None


def adam_delta(state: State, settings: Settings) -> Tensor | None:
    """m̂ / (sqrt(v̂) + ε) with the bias corrections of the last step (PipeOptim, table I; ε outside the root)."""
    if "exp_avg" not in state:
        return None
    step = _number(state["step"])
    mean, square = (1 - beta**step for beta in settings["betas"])
    # both corrections go into the divisor, which is made in the memory of the root
    divisor: Tensor = state["exp_avg_sq"].sqrt().mul_(mean / square**0.5).add_(settings["eps"] * mean)
    return torch.div(state["exp_avg"], divisor, out=divisor)


def _number(value: Tensor) -> Any:
    """A state of one number: as such, or on CUDA as it is, since reading it there would wait for the device."""
    return value.double() if value.is_cuda else float(value)


def nadam_delta(state: State, settings: Settings) -> Tensor | None:
    """((1 - μ_t)·g / (1 - Πμ_1..t) + μ_t+1·m / (1 - Πμ_1..t+1)) / (sqrt(v̂) + ε), as in the last update."""
    if LAST_GRADIENT not in state:
        return None
    step, product = float(state["step"]), float(state["mu_product"])
    beta1, _ = settings["betas"]
    now, following = (beta1 * (1 - 0.5 * 0.96 ** (k * settings["momentum_decay"])) for k in (step, step + 1))
    fresh: Tensor = state[LAST_GRADIENT] * ((1 - now) / (1 - product))
    mean = fresh.add_(state["exp_avg"], alpha=following / (1 - product * following))
    return mean.div_(_corrected_root(state, settings))


def _corrected_root(state: State, settings: Settings) -> Tensor:
    _, beta2 = settings["betas"]
    corrected: Tensor = state["exp_avg_sq"].sqrt().div_((1 - beta2 ** float(state["step"])) ** 0.5)
    return corrected.add_(settings["eps"])


def rmsprop_delta(state: State, settings: Settings) -> Tensor | None:
    """The momentum buffer; without momentum g / (sqrt(v) + ε), v the variance if centered."""
    if settings["momentum"]:
        return state.get("momentum_buffer")
    if LAST_GRADIENT not in state:
        return None
    square: Tensor = state["square_avg"]
    if settings["centered"]:
        # rounding may leave the variance of a gradient that never changes just below 0
        square = square.addcmul(state["grad_avg"], state["grad_avg"], value=-1).clamp_(min=0)
    delta: Tensor = state[LAST_GRADIENT] / square.sqrt().add_(settings["eps"])
    return delta


def rmsprop_kept_gradient(gradient: Tensor, weight: Tensor, settings: Settings) -> Tensor | None:
    """None with momentum, whose buffer holds the whole step."""
    return None if settings["momentum"] else as_seen(gradient, weight, settings)


def adagrad_delta(state: State, settings: Settings) -> Tensor | None:
    """g / (sqrt(sum of squares) + ε), times the decay that the learning rate will have at the next update."""
    if LAST_GRADIENT not in state:
        return None
    decay = 1 / (1 + float(state["step"]) * settings["lr_decay"])
    delta: Tensor = (state[LAST_GRADIENT] * decay).div_(state["sum"].sqrt().add_(settings["eps"]))
    return delta


DELTA_RULES: dict[type[Optimizer], DeltaRule] = {
    SGD: DeltaRule(sgd_delta, sgd_kept_gradient),
    Adam: DeltaRule(adam_delta, passes=9),
    AdamW: DeltaRule(adam_delta, passes=9),
    NAdam: DeltaRule(nadam_delta, as_seen, passes=16),
    RMSprop: DeltaRule(rmsprop_delta, rmsprop_kept_gradient, passes=10),
    Adagrad: DeltaRule(adagrad_delta, as_seen, passes=12),
}
"""Decoupled decay, of AdamW and NAdam, is no part of Δ, as in the paper."""

_VARIANTS = ("amsgrad", "maximize")


def delta_rule(optimizer: Optimizer) -> DeltaRule:
    """The rule that gives Δ for this optimizer.

    Raises:
        ConfigError: there is none.
    """
    names = ", ".join(kind.__name__ for kind in DELTA_RULES)
    rule = DELTA_RULES.get(type(optimizer))
    if rule is None:
        name = type(optimizer).__name__
        raise ConfigError(f"optimizer._target_: {name} has no prediction rule; those that have one: {names}")
    for variant in _VARIANTS:
        if optimizer.defaults.get(variant):
            raise ConfigError(
                f"optimizer.{variant}=true has no prediction rule; plain {names} have one (optimizer.{variant}=false)"
            )
    return rule
