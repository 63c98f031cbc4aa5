"""Δ, the step that an optimizer would take next per unit of learning rate, as PipeOptim predicts with it."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any

import torch
from torch import Tensor
from torch.optim import SGD, Adagrad, Adam, AdamW, NAdam, Optimizer, RMSprop

from pipetrain.engine.device_queue import queues
from pipetrain.engine.errors import ConfigError
from pipetrain.engine.tensors import as_real

State = Mapping[str, Any]
"""State of an optimizer for one parameter: torch's, and `LAST_GRADIENT` if the rule keeps one."""
Settings = Mapping[str, Any]
"""Settings of a parameter group: `lr`, `momentum`, `betas`, ..."""

LAST_GRADIENT = "last_gradient"


def effective_gradients(gradients: Sequence[Tensor], weights: Sequence[Tensor], settings: Settings) -> list[Tensor]:
    """The gradients that an update rule computes with: plus weight decay, unless that is decoupled."""
    decay = 0.0 if settings.get("decoupled_weight_decay") else settings.get("weight_decay", 0.0)
    if decay:
        return list(torch._foreach_add(list(gradients), [weight.detach() for weight in weights], alpha=decay))
    # copies in any case: Nesterov's momentum is added onto the gradients themselves where torch works on whole lists
    copies = [torch.empty_like(gradient) for gradient in gradients]
    torch._foreach_copy_(copies, list(gradients))
    return copies


@dataclass(frozen=True, slots=True)
class DeltaRule:
    """Rule for Δ of one kind of optimizer: the step of its last update, computed from its state after it.

    Table I of PipeOptim has three such rules; docs/methods.md derives the rest. All of them work on lists of weights,
    an operation at a time: on a device, launching it for each weight alone would take longer than carrying it out. An
    optimizer of your own has one as its class attribute `delta_rule`.

    Attributes:
        states: names of the states that `delta` takes; a weight without one, as before its first update, has no Δ.
        delta: Δ of weights that have been updated equally often, of their shapes, given that number.
        kept_gradients: (gradients, weights) before an update -> `LAST_GRADIENT`, if that is among the states, as
            torch holds it nowhere.
        passes: number of times that both read or write tensors of a weight's size; partitions count this.
        decaying: what the next updates would subtract from weights if their gradients were 0, given the number of
            updates made, the learning rates of the next ones, and the weights; None if unknown.
    """

    states: Callable[[Settings], tuple[str, ...]]
    delta: Callable[[Sequence[State], Settings, int], list[Tensor]]
    kept_gradients: Callable[[Sequence[Tensor], Sequence[Tensor], Settings], list[Tensor]] = effective_gradients
    passes: int = 0
    decaying: Callable[[Sequence[State], Settings, int, Sequence[float], Sequence[Tensor]], list[Tensor]] | None = None


def _by_parts(name: str) -> Callable[[Callable[..., list[Tensor]]], Callable[..., list[Tensor]]]:
    """Decorator: the formula with real and imaginary parts as separate weights, as torch's optimizers average squares.

    The state `name` is complex where the weight is.
    """

    def decorate(formula: Callable[..., list[Tensor]]) -> Callable[..., list[Tensor]]:
        @wraps(formula)
        def of_parts(states: Sequence[State], *known: Any) -> list[Tensor]:
            has_parts = [state[name].is_complex() for state in states]
            if not any(has_parts):
                return formula(states, *known)
            settings, updates, *others = known
            parts = [{key: _parts(value) for key, value in state.items()} for state in states]
            found = formula(parts, settings, updates, *([_parts(value) for value in each] for each in others))
            return [
                torch.view_as_complex(tensor) if split else tensor
                for tensor, split in zip(found, has_parts, strict=True)
            ]

        return of_parts

    return decorate


def _parts(value: Any) -> Any:
    """A view of a complex tensor as its real and imaginary parts; any other value as it is."""
    return as_real(value) if isinstance(value, Tensor) else value


def _all(states: Sequence[State], name: str) -> list[Tensor]:
    return [state[name] for state in states]


def sgd_states(settings: Settings) -> tuple[str, ...]:
    """The momentum buffer, with Nesterov's also the last gradient; without momentum only the gradient."""
    if not settings["momentum"]:
        return (LAST_GRADIENT,)
    return ("momentum_buffer", LAST_GRADIENT) if settings["nesterov"] else ("momentum_buffer",)


def sgd_delta(states: Sequence[State], settings: Settings, _updates: int) -> list[Tensor]:
    """The momentum buffer v, under Nesterov's g + μ·v; without momentum the last gradient."""
    if not settings["momentum"]:
        return _all(states, LAST_GRADIENT)
    buffers = _all(states, "momentum_buffer")
    if not settings["nesterov"]:
        return buffers
    return list(torch._foreach_add(_all(states, LAST_GRADIENT), buffers, alpha=settings["momentum"]))


def sgd_kept_gradients(gradients: Sequence[Tensor], weights: Sequence[Tensor], settings: Settings) -> list[Tensor]:
    """Without momentum the gradients themselves, with Nesterov's those that its update computes with."""
    return effective_gradients(gradients, weights, settings) if settings["momentum"] else list(gradients)


def sgd_decaying(
    states: Sequence[State], settings: Settings, _updates: int, rates: Sequence[float], _weights: Sequence[Tensor]
) -> list[Tensor]:
    """lr·(μ + μ² + ... + μ^s)·v with the next learning rate, as FTPipe predicts (Eliad et al. 2021, msnag)."""
    momentum = settings["momentum"]
    factor = rates[0] * (momentum - momentum ** (len(rates) + 1)) / (1 - momentum)
    return list(torch._foreach_mul(_all(states, "momentum_buffer"), factor))


@_by_parts("exp_avg")
def adam_decaying(
    states: Sequence[State], settings: Settings, updates: int, rates: Sequence[float], weights: Sequence[Tensor]
) -> list[Tensor]:
    """Steps of Adam with the coming learning rates and bias corrections, while only m decays (FTPipe).

    Weight decay adds to m as in Adam itself, at the weights predicted so far, unless it is decoupled.
    """
    beta1, beta2 = settings["betas"]
    decay = 0.0 if settings.get("decoupled_weight_decay") else settings["weight_decay"]
    means, roots = _all(states, "exp_avg"), torch._foreach_sqrt(_all(states, "exp_avg_sq"))
    moved = [torch.zeros_like(root) for root in roots]
    for t, rate in enumerate(rates, updates + 1):
        means = list(torch._foreach_mul(means, beta1))
        if decay:
            ahead = torch._foreach_sub([weight.detach() for weight in weights], moved)
            torch._foreach_add_(means, ahead, alpha=(1 - beta1) * decay)
        divisors = torch._foreach_div(roots, (1 - beta2**t) ** 0.5)
        torch._foreach_add_(divisors, settings["eps"])
        torch._foreach_addcdiv_(moved, means, divisors, value=rate / (1 - beta1**t))
    return moved


@_by_parts("exp_avg")
def adam_delta(states: Sequence[State], settings: Settings, updates: int) -> list[Tensor]:
    """m̂ / (sqrt(v̂) + ε) with the bias corrections of the last step (PipeOptim, table I; ε outside the root)."""
    mean, square = (1 - beta**updates for beta in settings["betas"])
    # both corrections go into the divisor, which is made in the memory of the root
    divisors = torch._foreach_sqrt(_all(states, "exp_avg_sq"))
    torch._foreach_mul_(divisors, mean / square**0.5)
    torch._foreach_add_(divisors, settings["eps"] * mean)
    return _over(_all(states, "exp_avg"), divisors)


def _over(dividends: Sequence[Tensor], divisors: Sequence[Tensor]) -> list[Tensor]:
    """The quotients, in the memory of the divisors, which is in the cache."""
    if queues(divisors[0].device):
        return list(torch._foreach_div(list(dividends), list(divisors)))
    for dividend, divisor in zip(dividends, divisors, strict=True):
        torch.div(dividend, divisor, out=divisor)
    return list(divisors)


@_by_parts("exp_avg")
def nadam_delta(states: Sequence[State], settings: Settings, updates: int) -> list[Tensor]:
    """((1 - μ_t)·g / (1 - Πμ_1..t) + μ_t+1·m / (1 - Πμ_1..t+1)) / (sqrt(v̂) + ε), as in the last update."""
    product = float(states[0]["mu_product"])
    beta1, beta2 = settings["betas"]
    now, following = (
        beta1 * (1 - 0.5 * 0.96 ** (k * settings["momentum_decay"])) for k in (float(updates), updates + 1.0)
    )
    means = torch._foreach_mul(_all(states, LAST_GRADIENT), (1 - now) / (1 - product))
    torch._foreach_add_(means, _all(states, "exp_avg"), alpha=following / (1 - product * following))
    roots = torch._foreach_sqrt(_all(states, "exp_avg_sq"))
    torch._foreach_div_(roots, (1 - beta2**updates) ** 0.5)
    torch._foreach_add_(roots, settings["eps"])
    torch._foreach_div_(means, roots)
    return list(means)


def rmsprop_states(settings: Settings) -> tuple[str, ...]:
    """The momentum buffer; without momentum the states that it is computed from."""
    if settings["momentum"]:
        return ("momentum_buffer",)
    return (LAST_GRADIENT, "square_avg", "grad_avg") if settings["centered"] else (LAST_GRADIENT, "square_avg")


@_by_parts("square_avg")
def rmsprop_delta(states: Sequence[State], settings: Settings, _updates: int) -> list[Tensor]:
    """The momentum buffer; without momentum g / (sqrt(v) + ε), v the variance if centered."""
    if settings["momentum"]:
        return _all(states, "momentum_buffer")
    squares = _all(states, "square_avg")
    if settings["centered"]:
        averages = _all(states, "grad_avg")
        squares = list(torch._foreach_addcmul(squares, averages, averages, value=-1))
        # rounding may leave the variance of a gradient that never changes just below 0
        torch._foreach_clamp_min_(squares, 0)
    roots = torch._foreach_sqrt(squares)
    torch._foreach_add_(roots, settings["eps"])
    return list(torch._foreach_div(_all(states, LAST_GRADIENT), roots))


@_by_parts("sum")
def adagrad_delta(states: Sequence[State], settings: Settings, updates: int) -> list[Tensor]:
    """g / (sqrt(sum of squares) + ε), times the decay that the learning rate will have at the next update."""
    deltas = torch._foreach_mul(_all(states, LAST_GRADIENT), 1 / (1 + updates * settings["lr_decay"]))
    roots = torch._foreach_sqrt(_all(states, "sum"))
    torch._foreach_add_(roots, settings["eps"])
    torch._foreach_div_(deltas, roots)
    return list(deltas)


def _always(*names: str) -> Callable[[Settings], tuple[str, ...]]:
    return lambda _settings: names


DELTA_RULES: dict[type[Optimizer], DeltaRule] = {
    SGD: DeltaRule(sgd_states, sgd_delta, sgd_kept_gradients, decaying=sgd_decaying),
    Adam: DeltaRule(_always("exp_avg", "exp_avg_sq"), adam_delta, passes=9, decaying=adam_decaying),
    AdamW: DeltaRule(_always("exp_avg", "exp_avg_sq"), adam_delta, passes=9, decaying=adam_decaying),
    NAdam: DeltaRule(_always(LAST_GRADIENT, "exp_avg", "exp_avg_sq"), nadam_delta, passes=16),
    RMSprop: DeltaRule(rmsprop_states, rmsprop_delta, passes=10),
    Adagrad: DeltaRule(_always(LAST_GRADIENT, "sum"), adagrad_delta, passes=12),
}
"""Decoupled decay, of AdamW and NAdam, is no part of Δ, as in the paper."""

_VARIANTS = ("amsgrad", "maximize")
_NAMES = ", ".join(kind.__name__ for kind in DELTA_RULES)
_WITHOUT = "method=lwp and method=pipedream need none; docs/your-own.md says how to give a class one"


def delta_rule(optimizer: Optimizer) -> DeltaRule:
    """Rule that gives Δ for this optimizer.

    Raises:
        ConfigError: there is none.
    """
    name, (owner, rule) = type(optimizer).__name__, _nearest_rule(type(optimizer))
    if rule is None or owner is None:
        raise ConfigError(
            f"optimizer._target_: {name} has no prediction rule; those that have one: {_NAMES}; {_WITHOUT}"
        )
    if not isinstance(rule, DeltaRule):
        raise ConfigError(f"optimizer._target_: {owner.__name__}.delta_rule is not a pipetrain.DeltaRule; {_WITHOUT}")
    # torch wraps `step` of each class
    if inspect.unwrap(type(optimizer).step) is not inspect.unwrap(owner.step):  # type: ignore[attr-defined]
        raise ConfigError(
            f"optimizer._target_: {name} overrides `step` of {owner.__name__}, whose prediction rule may not hold for "
            f"it; {_WITHOUT}"
        )
    for variant in _VARIANTS:
        if owner in DELTA_RULES and any(group.get(variant) for group in optimizer.param_groups):
            where = "optimizer." if optimizer.defaults.get(variant) else "optimizer.groups: "
            raise ConfigError(
                f"{where}{variant}=true has no prediction rule; plain {_NAMES} have one ({where}{variant}=false)"
            )
    return rule


def check_decaying(optimizer: Optimizer) -> None:
    """Checks that the steps of the optimizer without further gradients are known.

    Raises:
        ConfigError: they are not.
    """
    rule = delta_rule(optimizer)
    for settings in optimizer.param_groups:
        if isinstance(optimizer, SGD) and settings["momentum"] == 1:
            raise ConfigError(
                "method.prediction=decaying: momentum=1 never decays; momentum below 1, or method.prediction=constant "
                "works"
            )
        other = isinstance(optimizer, SGD) and (not settings["momentum"] or settings["nesterov"])
        if rule.decaying is None or other:
            variant = " without plain momentum" if rule.decaying is not None else ""
            raise ConfigError(
                f"method.prediction=decaying: {type(optimizer).__name__}{variant} has no rule for it; SGD with plain "
                "momentum, Adam and AdamW have one; any other needs method.prediction=constant or scheduled"
            )


def known_rule(optimizer: Optimizer) -> DeltaRule | None:
    """Rule that gives Δ for this optimizer, if any."""
    try:
        return delta_rule(optimizer)
    except ConfigError:
        return None


def _nearest_rule(kind: type) -> tuple[type | None, object]:
    """The nearest base class, or the class itself, that has a rule, and the rule."""
    for base in kind.__mro__:
        if "delta_rule" in vars(base):
            return base, vars(base)["delta_rule"]
        if base in DELTA_RULES:
            return base, DELTA_RULES[base]
    return None, None
