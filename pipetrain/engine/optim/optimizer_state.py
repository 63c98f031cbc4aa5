"""An optimizer's state as named tensors, for checkpoints.

Each weight has the tensors that the optimizer needs to continue with it in any stage, under names of three parts:

    exp_avg             optimizer.state[weight]["exp_avg"]
    step.number         optimizer.state[weight]["step"], a Python number
    group.weight_sum    "weight_sum" in the weight's parameter group, if a step has changed it
    common.k.number     optimizer.state["k"], which belongs to no weight
    updates_made        updates of the weight, for prediction rules of a user's class

Groups and common state are stored with every weight, because another partition puts each weight into another optimizer,
whose groups differ. `.number` marks Python numbers, which must not come back as tensors: an optimizer may branch on
them, and a tensor on a device would make each step wait.
"""

from collections.abc import Mapping, MutableMapping
from copy import copy
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from pipetrain.engine.errors import ConfigError

NUMBER, GROUP, _COMMON = ".number", "group.", "common."
UPDATES = "updates_made"
OURS = {"params", "lr", "initial_lr", "lr_scale"}
"""Parts of parameter groups that are not the optimizer's own."""
_ON_HOST = ("step", "mu_product")
"""States that torch keeps on the host, wherever the weights are, unless `fused` or `capturable` is set."""
_FUSED_STATES = ("momentum_buffer", "exp_avg", "exp_avg_sq", "max_exp_avg_sq", "sum")
"""States that torch's fused steps read and write as if they were as large as the weight."""


def group_settings(group: Mapping[str, Any]) -> dict[str, Any]:
    """Copy of the optimizer's own settings of a parameter group, which it may change in place later."""
    return {key: _copied(value) for key, value in group.items() if key not in OURS}


def changed_settings(group: Mapping[str, Any], made: Mapping[str, Any]) -> dict[str, Any]:
    """State name -> value of each setting that the optimizer has changed; `made` is the earlier `group_settings`."""
    own = {key: value for key, value in group.items() if key not in OURS}
    return {f"{GROUP}{key}": value for key, value in own.items() if _differ(value, made.get(key))}


def common_state(optimizer: Optimizer, parameters: Mapping[str, Tensor]) -> dict[str, Any]:
    """State name -> value of the state that the optimizer keeps under names of its own choice, not under weights.

    Raises:
        ConfigError: a name of such state is not a string.
    """
    weights = set(parameters.values())
    common: dict[Any, Any] = {key: value for key, value in optimizer.state.items() if key not in weights}
    if others := [key for key in common if not isinstance(key, str)]:
        raise ConfigError(
            f"optimizer: {type(optimizer).__name__} keeps state under a {type(others[0]).__name__}, which cannot be "
            "saved in a checkpoint; use the weights or strings as keys of `state`"
        )
    return {f"{_COMMON}{key}": value for key, value in common.items()}


def as_tensors(optimizer: Optimizer, values: Mapping[str, Any]) -> dict[str, Tensor]:
    """The values as tensors, by the same names, without values that are None.

    Raises:
        ConfigError: one is neither a tensor nor a number.
    """
    stored: dict[str, Tensor] = {}
    for key, value in values.items():
        if isinstance(value, Tensor):
            stored[key] = value
        elif isinstance(value, bool | int | float):
            dtype = torch.float64 if isinstance(value, float) else None
            stored[f"{key}{NUMBER}"] = torch.tensor(value, dtype=dtype)
        elif value is not None:
            own = key.removeprefix(GROUP).removeprefix(_COMMON)
            raise ConfigError(
                f"optimizer: {type(optimizer).__name__} keeps a {type(value).__name__} as {own!r}, which checkpoints "
                "cannot hold; they hold tensors and numbers"
            )
    return stored


def put_back(
    saved: Mapping[str, Tensor], optimizer: Optimizer, group: MutableMapping[str, Any], weight: Tensor, name: str
) -> None:
    """Restores the tensors of a weight, by state name, on its device and in its memory format.

    This is the inverse of `as_tensors`. Common state goes to the optimizer, too; `name` is the weight's, for errors.

    Raises:
        ConfigError: a state is smaller or larger than its weight, which a fused step would not notice.
    """
    fused = optimizer.defaults.get("fused")
    follows = fused or optimizer.defaults.get("capturable")
    of_weight: dict[Any, Any] = {}
    owners: dict[str, MutableMapping[Any, Any]] = {GROUP: group, _COMMON: optimizer.state, "": of_weight}
    for key, value in saved.items():
        if fused and key in _FUSED_STATES and value.shape != weight.shape:
            shapes = f"is of shape {tuple(value.shape)} in the checkpoint, and the weight of {tuple(weight.shape)}"
            raise ConfigError(f"optimizer: {key} of {name} {shapes}")
        prefix = next(each for each in owners if key.startswith(each))
        known = key.removeprefix(prefix)
        if known.endswith(NUMBER):
            owners[prefix][known.removesuffix(NUMBER)] = value.item()
        else:
            on = "cpu" if key in _ON_HOST and not follows else weight.device
            owners[prefix][known] = _laid_out(value.to(on), weight)
    if of_weight:
        optimizer.state[weight] = of_weight


def updates_of(saved: Mapping[str, Tensor]) -> int:
    """Number of updates of a weight, by its tensors; 0 if none counts them."""
    return int(next((saved[key] for key in (UPDATES, "step", f"step{NUMBER}") if key in saved), 0))


def _copied(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach().clone()
    return copy(value) if isinstance(value, list | dict | set) else value


def _differ(value: Any, other: Any) -> bool:
    if isinstance(value, Tensor) and isinstance(other, Tensor):
        return not torch.equal(value, other)
    return type(value) is not type(other) or bool(value != other)


def _laid_out(value: Tensor, parameter: Tensor) -> Tensor:
    """The value in the parameter's memory format, where they have one shape: torch's fused steps ignore strides."""
    if value.shape != parameter.shape or value.stride() == parameter.stride():
        return value
    return torch.empty_like(parameter, dtype=value.dtype, device=value.device).copy_(value)
