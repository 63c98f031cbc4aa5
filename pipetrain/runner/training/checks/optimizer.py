"""Checks of the optimizer: of its parameter groups, and of what differs from stage to stage."""

import fnmatch
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from difflib import get_close_matches
from typing import Any

import torch
from torch import Tensor, nn

from pipetrain.engine.errors import ConfigError, as_configured
from pipetrain.engine.failure import described
from pipetrain.engine.models.chain import trainable_weights
from pipetrain.engine.models.ties import ties_between
from pipetrain.runner.config.instantiate import annotation_problem
from pipetrain.runner.config.optimizer import CONDITIONS, OptimizerSettings, ParameterGroup
from pipetrain.runner.config.settings import Settings
from pipetrain.runner.config.suggestions import did_you_mean
from pipetrain.runner.training.builders.optimizer import build_torch_optimizer, try_step
from pipetrain.runner.training.components import Components

_OF_ALL = ("lr", "fused", "foreach", "capturable", "differentiable")
"""Options of torch's parameter groups that are the same for all."""
_ELSEWHERE = {"lr": "lr_scale", "lr_mult": "lr_scale", "wd": "weight_decay", "name": "match", "ndim": "max_dims"}
"""Name of a key in other programs -> name here."""


def check_parameter_groups(settings: Settings, components: Components) -> Iterator[str]:
    """A note on each group: how many parameters it has.

    Raises:
        ConfigError: a group has no parameters, or an option that the optimizer does not take.
    """
    optimizer, module = settings.optimizer, components.chain.module
    parameters = trainable_weights(module)
    if not optimizer.groups or not parameters:
        return
    _check_options(optimizer, list(parameters.values()))
    members: list[list[nn.Parameter]] = [[] for _ in range(len(optimizer.groups) + 1)]
    for name, parameter in parameters.items():
        members[optimizer.group_of(name, parameter.dim())].append(parameter)
    for group, held in zip(optimizer.groups, members[1:], strict=True):
        _check_patterns(group, parameters, components.chain.aliases())
        if not held:
            taken = any(group.takes(name, parameter.dim()) for name, parameter in parameters.items())
            why = "earlier groups, which come first, have all" if taken else "the model has no"
            raise ConfigError(f"{_conditions(group)}: {why} trainable parameters that meet these conditions")
        options = ", ".join(f"{name}={as_configured(value)}" for name, value in group.options.items())
        yield f"{_conditions(group)}: {_count(held)}; {options or 'no other options'}"
    yield f"optimizer.groups: {_count(members[0])} in none of them"


def check_options_of_stages(settings: Settings, components: Components) -> Iterator[str]:
    """Notes on the delays that divide the learning rates of stages, and on the momentum of stages.

    Raises:
        ConfigError: stages that share a weight would update it with different momentum.
    """
    optimizer, num_stages = settings.optimizer, len(components.plan.bounds)
    if optimizer.lr_by_delay is not None:
        delays = [context.rate_delay for phase in components.phases for context in phase.rules.contexts]
        divided = f"learning rates of stages are first divided by delays of {min(delays)} to {max(delays)}"
        yield f"optimizer.lr_by_delay={optimizer.lr_by_delay}: {divided if max(delays) > 1 else 'no delay above 1'}"
    if optimizer.momentum_by_stage is not None:
        first, last = (optimizer.options_of_stage(r, num_stages) for r in (0, num_stages - 1))
        shown = [f"{name} from {_momentum(first[name])} on stage 0 to {_momentum(last[name])}" for name in first]
        given = list(optimizer.momentum_by_stage)
        ties = [] if components.plan.finegrained else ties_between(components.chain, components.plan.bounds)
        if ties:
            raise ConfigError(
                f"optimizer.momentum_by_stage={given}: {ties[0]}, whose copies of it would then differ; "
                "model.untie=true separates them"
            )
        yield f"optimizer.momentum_by_stage={given}: {', '.join(shown)} on stage {num_stages - 1}"


def _momentum(option: Any) -> str:
    return f"{option if isinstance(option, float) else option[0]:.4g}"


def _check_options(settings: OptimizerSettings, parameters: list[nn.Parameter]) -> None:
    optimizer, target = build_torch_optimizer(settings, parameters), settings.target
    known = [*CONDITIONS, "lr_scale", *(name for name in optimizer.defaults if name not in _OF_ALL)]
    taken = target.parameters()
    for group in settings.groups:
        for name, value in group.options.items():
            given = f"{group.setting}.{name}={as_configured(value)}"
            if name not in known:
                meant = did_you_mean(name, known, _ELSEWHERE) or f"; it takes {', '.join(known)}"
                raise ConfigError(f"{given}: a group of {type(optimizer).__name__} takes no {name}{meant}")
            if name in taken and (wrong := annotation_problem(taken[name], value)):
                raise ConfigError(f"{given}: {wrong}")
        options = {name: value for name, value in group.options.items() if name in taken}
        of_groups = {name: value for name, value in group.options.items() if name not in taken}
        try:  # torch checks options only in the constructor
            replace(target, options={**target.options, **options}).build([{**of_groups, "params": parameters}])
        except ConfigError as error:
            raise ConfigError(f"{_conditions(group)}: {error}") from error


def _conditions(group: ParameterGroup) -> str:
    conditions = {"match": " or ".join(group.patterns) or None, "max_dims": group.max_dims}
    given = ", ".join(f"{name}={value}" for name, value in conditions.items() if value is not None)
    return f"{group.setting} ({given})"


def _count(parameters: list[nn.Parameter]) -> str:
    elements = sum(parameter.numel() for parameter in parameters)
    return f"{len(parameters)} tensor{'s' * (len(parameters) != 1)} with {elements:,} parameters"


def _check_patterns(group: ParameterGroup, names: Collection[str], aliases: Mapping[str, str]) -> None:
    for pattern in group.patterns:
        if fnmatch.filter(names, pattern):
            continue
        folders = (
            ".".join([*parts[:k], "*"]) for parts in (name.split(".") for name in names) for k in range(1, len(parts))
        )
        tied = fnmatch.filter(aliases, pattern)
        if any(group.takes(aliases[name], 0) for name in tied):
            continue  # by its first name
        if tied:
            hint = f"{tied[0]} is tied to {aliases[tied[0]]}, by whose name it goes"
        elif fnmatch.filter(names, f"*{pattern}"):
            hint = f"did you mean *{pattern}?"
        elif near := get_close_matches(pattern, dict.fromkeys([*folders, *names])):
            hint = f"did you mean {' or '.join(near)}?"
        else:
            hint = f"it has {', '.join(list(names)[:4])}, ..."
        raise ConfigError(
            f"{group.setting}.match={pattern}: no trainable parameter of the model has such a name; {hint}"
        )


def check_step(settings: Settings, components: Components) -> Iterator[str]:
    """Warnings if a step of one weight depends on the others of its stage, or is random; a few weights are tried.

    Raises:
        ConfigError: the optimizer cannot update them, checkpoints cannot hold its state, or copies of a weight in
            several stages or replicas would differ.
    """
    chain, optimizer = components.chain, settings.optimizer
    weights = trainable_weights(chain.module)
    with torch.random.fork_rng(devices=[]):
        before = torch.get_rng_state()
        try:
            together = try_step(optimizer, weights, device=components.device)
            drawn = not torch.equal(torch.get_rng_state(), before)
            torch.set_rng_state(before)
            alone = _step_alone(optimizer, {name: weights[name] for name in list(together)[:1]}, components.device)
        except ConfigError:
            raise
        except Exception as error:  # of the optimizer's own
            raise ConfigError(f"{optimizer.target.setting}: cannot take a step: {described(error)}") from error
    kind = optimizer.target.path
    if drawn:
        _refuse_copies(components, f"{kind} draws random numbers, other ones for each copy", replicas_too=True)
        yield f"warning: {kind} draws random numbers, of which each process has its own: executors differ in their bits"
    elif any(not torch.equal(together[name].nan_to_num(), value.nan_to_num()) for name, value in alone.items()):
        depends = f"a step of {kind} for one weight depends on the others of its stage"
        _refuse_copies(components, depends)
        if len(components.plan.bounds) > 1:
            yield f"warning: {depends}, so results depend on the partition"


def _step_alone(optimizer: OptimizerSettings, weights: Mapping[str, Tensor], device: str) -> dict[str, Tensor]:
    """These weights after a step without the others; none if it fails, as in optimizers that need several kinds."""
    try:
        return try_step(optimizer, weights, device=device)
    except Exception:  # of the optimizer's own
        return {}


def _refuse_copies(components: Components, why: str, *, replicas_too: bool = False) -> None:
    bounds, counts = components.plan.bounds, components.phases[0].rules.replicas.counts
    if not components.plan.finegrained and (ties := ties_between(components.chain, bounds)):
        raise ConfigError(
            f"optimizer: {why}, and {ties[0]}, of which copies must be equal; model.untie=true, or an optimizer of "
            "torch.optim, works"
        )
    if replicas_too and max(counts) > 1:
        raise ConfigError(f"optimizer: {why}, and replicas must be equal; partition.replicas=null works")
