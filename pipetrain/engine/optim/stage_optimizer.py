"""A stage's optimizer: torch.optim's, with its learning rate, and the step that it would take next (Δ)."""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from pipetrain.engine.device_queue import together
from pipetrain.engine.errors import ConfigError
from pipetrain.engine.optim import optimizer_state
from pipetrain.engine.optim.prediction import (
    DELTA_RULES,
    LAST_GRADIENT,
    DeltaRule,
    Settings,
    State,
    delta_rule,
    known_rule,
)

Rate = Callable[[int], float]
"""The learning rate of the stage's update number k, from 0."""

LAST_UPDATE = "last_update"
"""State of a weight under error feedback: its last update, before the correction."""


class _Alike(NamedTuple):
    """Weights of one parameter group that have been updated equally often, with their states in the optimizer."""

    settings: Settings
    names: list[str]
    states: list[State]


class StageOptimizer:
    """Applies one minibatch's gradient to a stage's parameters, of which there may be none, and predicts the next step.

    Each of torch's parameter groups has its own settings. `lr_scale`, if it is among them, multiplies the rate.

    Args:
        build: makes torch's optimizer.
        parameters: by name.
        rate: learning rate of each update.
        groups: what `build` is called with, such as torch's parameter groups; None: a list of the parameters.
        error_feedback: strength of the correction of each update by its difference from the last one; None for none.

    Attributes:
        scale: factor of a method on the rate of update k.
        stride: updates of the run from one update to the next: the number of the stage's replicas.
    """

    def __init__(
        self,
        build: Callable[[list[Any]], Optimizer],
        parameters: Mapping[str, nn.Parameter],
        rate: Rate,
        groups: list[Any] | None = None,
        error_feedback: float | None = None,
    ) -> None:
        self.parameters = dict(parameters)
        # torch's optimizers refuse an empty list, and a stage of pooling layers has nothing to optimize
        self.optimizer = build(groups or list(self.parameters.values())) if self.parameters else None
        names = {parameter: name for name, parameter in self.parameters.items()}
        self._groups: list[tuple[Settings, list[str]]] = [
            (group, [names[parameter] for parameter in group["params"] if parameter in names])
            for group in (self.optimizer.param_groups if self.optimizer is not None else ())
        ]
        """Settings of each of torch's parameter groups, and the names of its parameters."""
        self._settings_made = [optimizer_state.group_settings(group) for group, _ in self._groups]
        self._error_feedback = error_feedback
        self.rate = rate
        self.scale: Rate = lambda _update: 1.0
        self.updates = 0
        self.stride = 1
        self._made = dict.fromkeys(self.parameters, 0)
        """Updates of each weight, which torch may count on the device, where a look would wait for it."""
        self._keeps_last_gradients = False
        self._alike: list[_Alike] | None = None
        """All weights, until an update or anything else may group them in another way; None if not known."""

    @property
    def next_learning_rate(self) -> float:
        """The learning rate of the stage's next update, without the factors of parameter groups."""
        return self.rate(self.updates) * self.scale(self.updates)

    def coming_learning_rates(self, steps: int) -> dict[str, list[float]]:
        """Name -> learning rates of the next `steps` updates of each parameter."""
        counts = [self.updates + i * self.stride for i in range(steps)]
        rates = [self.rate(k) * self.scale(k) for k in counts]
        coming: dict[str, list[float]] = {}
        for settings, names in self._groups:
            own = [rate * _lr_scale(settings) for rate in rates]
            coming.update({name: own for name in names})
        return coming

    def step(self, gradients: Mapping[str, Tensor]) -> None:
        """One update; a parameter without a gradient is skipped, as in plain torch training."""
        if self.optimizer is not None:
            rate = self.next_learning_rate
            for group in self.optimizer.param_groups:
                group["lr"] = rate * _lr_scale(group)
            last_gradients = self._last_gradients(gradients)
            before = {}
            if self._error_feedback is not None:
                before = {name: self.parameters[name].detach().clone() for name in gradients}
            for names in self._together(self.optimizer, gradients):
                for name in names:
                    self.parameters[name].grad = gradients[name]
                self.optimizer.step()
                for name in names:
                    self.parameters[name].grad = None
                    self._made[name] += 1
            if self._error_feedback is not None:
                self._correct(self.optimizer, before, self._error_feedback)
            for name, gradient in last_gradients.items():
                self.optimizer.state[self.parameters[name]][LAST_GRADIENT] = gradient
            if len(gradients) < len(self.parameters):
                self._alike = None
        self.updates += 1

    @torch.no_grad()
    def _correct(self, optimizer: Optimizer, before: Mapping[str, Tensor], strength: float) -> None:
        """Error feedback on updates: W <- W - c·(u_t - u_{t-1}), u the uncorrected update (arXiv 2606.30634).

        The first update of a weight is not corrected. One without a gradient counts as an update of 0.
        """
        for name, parameter in self.parameters.items():
            last = optimizer.state.get(parameter, {}).get(LAST_UPDATE)
            if name not in before:
                if last is not None:
                    last.zero_()
                continue
            update = before[name].sub_(parameter)
            if last is not None:
                parameter.add_(update - last, alpha=-strength)
            optimizer.state[parameter][LAST_UPDATE] = update

    def _together(self, optimizer: Optimizer, gradients: Mapping[str, Tensor]) -> list[list[str]]:
        """Weights for each call of torch's step, whose fused SGD does not mix first gradients with later ones."""
        if not (optimizer.defaults.get("fused") and any(group.get("momentum") for group in optimizer.param_groups)):
            return [list(gradients)]
        first, later = list[str](), list[str]()
        for name in gradients:
            begun = "momentum_buffer" in optimizer.state.get(self.parameters[name], {})
            (later if begun else first).append(name)
        return [names for names in (first, later) if names]

    def keep_last_gradients(self, *, enabled: bool) -> None:
        """Keeps the gradients that Δ needs at each update from here on; if not `enabled`, drops them."""
        self._keeps_last_gradients = enabled
        self._alike = None
        if not enabled and self.optimizer is not None:
            for parameter in self.parameters.values():
                self.optimizer.state.get(parameter, {}).pop(LAST_GRADIENT, None)

    @cached_property
    def _rule(self) -> DeltaRule | None:
        return known_rule(self.optimizer) if self.optimizer is not None else None

    def _last_gradients(self, gradients: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The part of these gradients that the prediction rule needs, as they are before the update."""
        if not self._keeps_last_gradients:
            return {}
        rule, kept = self._rule, dict[str, Tensor]()
        for settings, members in self._groups:
            if rule is None or LAST_GRADIENT not in rule.states(settings):
                continue
            for names in together({name: gradients[name] for name in members if name in gradients}):
                weights = [self.parameters[name] for name in names]
                kept.update(
                    zip(names, rule.kept_gradients([gradients[name] for name in names], weights, settings), strict=True)
                )
        return kept

    def deltas(self) -> dict[str, Tensor]:
        """Δ of every parameter that was ever updated: the next step per unit of learning rate.

        Raises:
            ConfigError: the optimizer has no prediction rule, or one that returns too few or too many.
        """
        return self._of_rule("delta", lambda rule, _names, *known: rule.delta(*known))

    def decaying_steps(self, steps: int, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """What the next `steps` updates would subtract from these weights if their gradients were 0.

        Raises:
            ConfigError: as `deltas` does.
        """
        rates = self.coming_learning_rates(steps)

        def steps_of(
            rule: DeltaRule, names: list[str], states: Sequence[State], settings: Settings, updates: int
        ) -> list[Tensor]:
            assert rule.decaying is not None, "the method checks its optimizer"
            return rule.decaying(states, settings, updates, rates[names[0]], [weights[name] for name in names])

        return self._of_rule("decaying", steps_of)

    def _of_rule(self, part: str, compute: Callable[..., list[Tensor]]) -> dict[str, Tensor]:
        """Result of a part of the prediction rule for every parameter that was ever updated."""
        if self.optimizer is None:
            return {}
        rule, results = self._rule or delta_rule(self.optimizer), dict[str, Tensor]()
        for settings, names, states in self._alike or self._find_alike(rule, self.optimizer):
            found = compute(rule, names, states, settings, self._made[names[0]])
            if len(found) != len(names):
                kind = f"{type(self.optimizer).__name__}.delta_rule"
                raise ConfigError(f"{kind}: `{part}` returned {len(found)} tensors for {len(names)} weights")
            results.update(zip(names, found, strict=True))
        return {name: results[name] for name in self.parameters if name in results}

    def _find_alike(self, rule: DeltaRule, optimizer: Optimizer) -> list[_Alike]:
        """The weights that have all states of the rule, in groups for one call of its formulas."""
        found: list[_Alike] = []
        for settings, members in self._groups:
            states = {name: optimizer.state.get(self.parameters[name], {}) for name in members}
            needed, by_number = rule.states(settings), dict[int, dict[str, Tensor]]()
            for name, state in states.items():
                if all(state.get(each) is not None for each in needed):
                    by_number.setdefault(self._made[name], {})[name] = self.parameters[name]
            groups = [names for weights in by_number.values() for names in together(weights)]
            found += [_Alike(settings, names, [states[name] for name in names]) for names in groups]
        # other optimizers than torch's may put new states in place of these
        if rule in DELTA_RULES.values() and sum(len(each.names) for each in found) == len(self.parameters):
            self._alike = found
        return found

    def state(self) -> dict[str, dict[str, Tensor]]:
        """Parameter name -> state name -> tensor, for checkpoints.

        It includes, for each parameter, what the optimizer changes in its parameter groups, and its state of no
        parameter. Numbers become tensors.

        Raises:
            ConfigError: the optimizer keeps anything else.
        """
        if self.optimizer is None:
            return {}
        common = optimizer_state.common_state(self.optimizer, self.parameters)
        changed: dict[str, dict[str, Any]] = {}
        for (settings, names), made in zip(self._groups, self._settings_made, strict=True):
            changed |= dict.fromkeys(names, optimizer_state.changed_settings(settings, made))
        counts = self._rule is not None and self._rule not in DELTA_RULES.values()
        stored: dict[str, dict[str, Tensor]] = {}
        for name, parameter in self.parameters.items():
            made = {optimizer_state.UPDATES: torch.tensor(self._made[name])} if counts and self._made[name] else {}
            values = {**self.optimizer.state.get(parameter, {}), **changed.get(name, {}), **made, **common}
            if values:
                stored[name] = optimizer_state.as_tensors(self.optimizer, values)
        return stored

    def load_state(self, state: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Restores the output of `state` for the parameters of this stage, on the devices that torch expects.

        State of a weight that is not trained any more is left out.

        Raises:
            ConfigError: a state is smaller or larger than its weight, which a fused step would not notice.
        """
        if self.optimizer is None:
            return
        self._alike = None
        left_out = {optimizer_state.UPDATES} if self._error_feedback else {optimizer_state.UPDATES, LAST_UPDATE}
        groups = zip(self.optimizer.param_groups, self._groups, strict=True)
        group_of = {name: group for group, (_, names) in groups for name in names}
        for name, saved in state.items():
            if name in self.parameters:
                kept = {key: value for key, value in saved.items() if key not in left_out}
                optimizer_state.put_back(kept, self.optimizer, group_of[name], self.parameters[name], name)
                self._made[name] = optimizer_state.updates_of(saved)


_OF_BYTES = {2: torch.bfloat16, 4: torch.float32, 8: torch.float64, 16: torch.complex128}
"""Types of weights by the bytes of a number; complex64 has the size of float64."""


def state_bytes(
    build: Callable[[list[Any]], Optimizer], options: Settings, shape: Sequence[int], element_bytes: int
) -> int:
    """Bytes of an optimizer's state of one weight, by an update on torch's meta device, which computes nothing.

    `build` makes the optimizer from parameter groups, `options` are those of the weight's, and `element_bytes` the size
    of each of its numbers.

    Raises:
        Exception: the optimizer cannot be built, or its step depends on values of tensors.
    """
    weight = nn.Parameter(torch.empty(tuple(shape), dtype=_OF_BYTES[element_bytes], device="meta"))
    optimizer = StageOptimizer(build, {"": weight}, lambda _update: 1.0, [{**options, "params": [weight]}])
    optimizer.step({"": torch.empty_like(weight)})
    return sum(value.nbytes for state in optimizer.state().values() for value in state.values())


def keep_proportions(optimizer: Optimizer, common: float | None) -> Optimizer:
    """The optimizer, with `lr_scale`, the factor on `common`, in groups that it was made with different rates for.

    Nothing changes where `common` is None or 0.
    """
    for group in optimizer.param_groups if common else ():
        if "lr_scale" not in group and group.get("lr") not in (None, common):
            group["lr_scale"] = float(group["lr"] / common)
    return optimizer


def common_rate(optimizer: Optimizer) -> Any:
    """The learning rate of an optimizer's groups: its default if one of them has it, or else the first one's.

    torch's classes have a default even where each group was made with a rate; other classes have none.
    """
    rates, default = [group.get("lr") for group in optimizer.param_groups], optimizer.defaults.get("lr")
    return default if default in rates else rates[0]


def _lr_scale(settings: Settings) -> float:
    """Factor on the learning rate of a parameter group."""
    return float(settings.get("lr_scale", 1.0))
