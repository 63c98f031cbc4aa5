"""The optimizers of the stages, and the groups of parameters that they update with other options."""

import fnmatch
import inspect
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adagrad, Adam, AdamW, Optimizer

from pipetrain.engine.errors import ConfigError, as_configured
from pipetrain.engine.models.chain import LayerChain, trainable_weights
from pipetrain.engine.optim.optimizer_factory import OptimizerFactory
from pipetrain.engine.optim.stage_optimizer import common_rate, keep_proportions
from pipetrain.runner.config.optimizer import CONDITIONS, OptimizerSettings, ParameterGroup
from pipetrain.runner.config.settings import Settings
from pipetrain.runner.config.suggestions import did_you_mean
from pipetrain.runner.training.components.learning_rate import build_rate
from pipetrain.runner.training.timetable import Timetable

_OF_ALL = ("lr", "fused", "foreach", "capturable", "differentiable")
"""Options of torch's parameter groups that are the same for all."""
_FUSED_ON: dict[type[Optimizer], tuple[str, ...]] = {
    SGD: ("cpu", "cuda"),
    Adam: ("cpu", "cuda"),
    AdamW: ("cpu", "cuda"),
    Adagrad: ("cpu",),  # torch 2.11 refuses it on CUDA
}
_FUSED_TYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def build_optimizers(settings: Settings, timetable: Timetable, num_stages: int) -> OptimizerFactory:
    """Makes the optimizer of each stage; raises a ConfigError if there is no learning rate; as `build_rate`."""
    optimizer = settings.optimizer
    return OptimizerFactory(
        build=partial(build_torch_optimizer, optimizer),
        rate=build_rate(settings, timetable),
        groups=partial(parameter_groups, optimizer),
        options_of_stage=partial(optimizer.options_of_stage, num_stages=num_stages),
        error_feedback=optimizer.error_feedback,
        average_decay=settings.train.ema,
    )


def parameter_groups(settings: OptimizerSettings, parameters: Mapping[str, nn.Parameter]) -> list[Any]:
    """The parameters as torch's optimizers take them: a list, or torch's parameter groups if the settings have groups.

    Parameters, by name in the whole model, that are in no group of the settings come first. Empty groups are left out.
    """
    if not settings.groups:
        return list(parameters.values())
    groups = [{**options, "params": list[nn.Parameter]()} for options in ({}, *(g.options for g in settings.groups))]
    for name, parameter in parameters.items():
        groups[settings.group_of(name, parameter.dim())]["params"].append(parameter)
    return [group for group in groups if group["params"]]


def build_torch_optimizer(settings: OptimizerSettings, parameters: list[Any], **options: Any) -> Optimizer:
    """torch's optimizer of some parameters, in its fused form where torch has one, with `lr_scale` in its own groups.

    `parameters` may be torch's parameter groups; `options` take the place of those in the settings.
    """

    def build(**more: Any) -> Any:
        # torch fills in the options that a group lacks
        given = [dict(each) if isinstance(each, dict) else each for each in parameters]
        return settings.target.build(given, **options, **more)

    optimizer = build()
    if not isinstance(optimizer, Optimizer):
        raise settings.target.wrong_type_error(optimizer, "a torch.optim.Optimizer")
    closure = inspect.signature(optimizer.step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise ConfigError(
            f"{settings.target.setting}: its step evaluates the model again, which a pipeline cannot "
            "do; use another, such as torch.optim.SGD or Adam"
        )
    held = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    fused = settings.target.takes("fused") and can_be_fused(optimizer, held)  # a function may take no form
    made: Optimizer = build(fused=True) if fused else optimizer
    rate = _rate_made_with(settings, made)
    keep_proportions(made, rate)
    return made


def can_be_fused(optimizer: Optimizer, parameters: Iterable[Tensor]) -> bool:
    """True if the optimizer may be rebuilt with `fused=True`: torch supports it and the user chose no other form."""
    settings, devices = optimizer.defaults, _FUSED_ON.get(type(optimizer), ())
    chosen = any(settings.get(form) is not None for form in ("fused", "foreach"))
    other = any(settings.get(form) for form in ("capturable", "differentiable"))
    return not (chosen or other) and all(p.device.type in devices and p.dtype in _FUSED_TYPES for p in parameters)


def _rate_made_with(settings: OptimizerSettings, optimizer: Optimizer) -> Any:
    """The rate that is `optimizer.lr` once the run sets it: all rates of groups are relative to it."""
    if settings.lr is not None and settings.target.takes("lr"):
        return settings.lr
    try:  # stages may lack weights of some groups, and all need one answer
        return common_rate(settings.target.build([nn.Parameter(torch.zeros(1, 1))]))
    except ConfigError:  # as of optimizers that need weights of several kinds
        return common_rate(optimizer)


def check_parameter_groups(optimizer: OptimizerSettings, chain: LayerChain) -> Iterator[str]:
    """A note on each group: how many parameters it has."""
    parameters = trainable_weights(chain.module)
    if not optimizer.groups or not parameters:
        return
    _check_options(optimizer, list(parameters.values()))
    members: list[list[nn.Parameter]] = [[] for _ in range(len(optimizer.groups) + 1)]
    for name, parameter in parameters.items():
        members[optimizer.group_of(name, parameter.dim())].append(parameter)
    for group, held in zip(optimizer.groups, members[1:], strict=True):
        _check_patterns(group, parameters, chain.aliases())
        if not held:
            raise ConfigError(f"{_conditions(group)}: matches no remaining trainable parameter")
        options = ", ".join(f"{name}={as_configured(value)}" for name, value in group.options.items())
        yield f"{_conditions(group)}: {_count(held)}; {options or 'no other options'}"
    yield f"optimizer.groups: {_count(members[0])} in none of them"


def _check_patterns(group: ParameterGroup, names: Collection[str], aliases: Mapping[str, str]) -> None:
    # a pattern of a tied weight's further name has no effect unless the group takes its first name as well
    named = [*names, *(name for name, first in aliases.items() if group.takes(first, 0))]
    if unused := [pattern for pattern in group.patterns if not fnmatch.filter(named, pattern)]:
        raise ConfigError(f"{group.setting}.match={unused[0]}: matches no trainable parameter of the model")


def _check_options(settings: OptimizerSettings, parameters: list[nn.Parameter]) -> None:
    optimizer, target = build_torch_optimizer(settings, parameters), settings.target
    taken = target.parameters()
    for group in settings.groups:
        _check_option_names(group, optimizer)
        options, of_group = dict(target.options), dict[str, Any](params=parameters)
        for name, value in group.options.items():
            (options if name in taken else of_group)[name] = value
        try:  # torch checks options only in the constructor
            replace(target, options=options).build([of_group])
        except ConfigError as error:
            raise ConfigError(f"{_conditions(group)}: {error}") from error


def _check_option_names(group: ParameterGroup, optimizer: torch.optim.Optimizer) -> None:
    known = [*CONDITIONS, "lr_scale", *(name for name in optimizer.defaults if name not in _OF_ALL)]
    for name, value in group.options.items():
        if name not in known:
            meant = did_you_mean(name, known) or f"; it takes {', '.join(known)}"
            given = f"{group.setting}.{name}={as_configured(value)}"
            raise ConfigError(f"{given}: a group of {type(optimizer).__name__} takes no {name}{meant}")


def _conditions(group: ParameterGroup) -> str:
    conditions = {"match": " or ".join(group.patterns) or None, "max_dims": group.max_dims}
    given = ", ".join(f"{name}={value}" for name, value in conditions.items() if value is not None)
    return f"{group.setting} ({given})"


def _count(parameters: list[nn.Parameter]) -> str:
    elements = sum(parameter.numel() for parameter in parameters)
    return f"{len(parameters)} tensor{'s' * (len(parameters) != 1)} with {elements:,} parameters"
