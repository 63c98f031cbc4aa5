"""The optimizers of the stages, and their learning rates in each step."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from pipetrain.engine.errors import ConfigError
from pipetrain.engine.executors.pipeline_rules import Phase
from pipetrain.engine.optim.lr_schedule import LearningRateSchedule
from pipetrain.engine.optim.optimizer_factory import OptimizerFactory
from pipetrain.engine.optim.stage_optimizer import can_be_fused, common_rate, keep_proportions
from pipetrain.runner.config.optimizer import OptimizerSettings
from pipetrain.runner.config.settings import Settings
from pipetrain.runner.training.components.torch_scheduler import TorchScheduler
from pipetrain.runner.training.timetable import Timetable


def build_rate(settings: Settings, timetable: Timetable) -> Callable[[int], float]:
    """The learning rate of each update.

    Raises:
        ConfigError: the schedule refuses an option, or there is no rate for it to scale.
    """
    base = settings.optimizer.lr
    if base is None:
        raise ConfigError("optimizer.lr=null: learning-rate schedules scale it; set a rate, such as optimizer.lr=0.01")
    target = settings.lr_schedule
    if scheduler := settings.torch_scheduler:
        ours = {name: target.options[name] for name in ("unit", "warmup") if name in target.options}
        schedule: LearningRateSchedule = TorchScheduler(make=scheduler.build, lr=base, name=target.setting, **ours)
    else:
        schedule = target.build()
    if not isinstance(schedule, LearningRateSchedule):
        raise target.wrong_type_error(
            schedule, "a pipetrain.LearningRateSchedule or a scheduler of torch.optim.lr_scheduler"
        )
    schedule.check(timetable.steps_per_epoch, timetable.total_steps)
    return lambda step: base * schedule.factor(step, timetable.steps_per_epoch, timetable.total_steps)


def build_optimizers(settings: Settings, timetable: Timetable, num_stages: int) -> OptimizerFactory:
    """Makes the optimizer of each stage.

    Raises:
        ConfigError: there is no learning rate; as `build_rate`.
    """
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

    The parameters that are in no group of the settings come first. Empty groups are left out.

    Args:
        settings: of the optimizer.
        parameters: by name in the whole model.
    """
    if not settings.groups:
        return list(parameters.values())
    groups = [{**options, "params": list[nn.Parameter]()} for options in ({}, *(g.options for g in settings.groups))]
    for name, parameter in parameters.items():
        groups[settings.group_of(name, parameter.dim())]["params"].append(parameter)
    return [group for group in groups if group["params"]]


def build_torch_optimizer(settings: OptimizerSettings, parameters: list[Any], **options: Any) -> Optimizer:
    """torch's optimizer of some parameters, in its fused form where torch has one, with `lr_scale` in its own groups.

    Args:
        settings: of the optimizer.
        parameters: a list of them, or of torch's parameter groups.
        options: of the target in place of those in the settings.

    Raises:
        ConfigError: the target refuses an option, or is something else.
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
            f"{settings.target.setting}: its steps evaluate the model again, which a pipeline cannot "
            "do; those of torch.optim.SGD or Adam do not"
        )
    held = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    fused = settings.target.takes("fused") and can_be_fused(optimizer, held)  # a function may take no form
    made: Optimizer = build(fused=True) if fused else optimizer
    keep_proportions(made, _rate_made_with(settings, made))
    return made


def _rate_made_with(settings: OptimizerSettings, optimizer: Optimizer) -> Any:
    """The rate that is `optimizer.lr` once the run sets it: all rates of groups are relative to it."""
    if settings.lr is not None and settings.target.takes("lr"):
        return settings.lr
    try:  # stages may lack weights of some groups, and all need one answer
        return common_rate(settings.target.build([nn.Parameter(torch.zeros(1, 1))]))
    except ConfigError:  # as of optimizers that need weights of several kinds
        return common_rate(optimizer)


def rates_by_stage(base: Callable[[int], float], phases: Sequence[Phase]) -> Callable[[int], dict[str, float]]:
    """The rates of a step: `lr`, and `stageR_lr` for each stage if a method, replicas or delays scale them in the run.

    Args:
        base: the rate of the learning-rate schedule.
        phases: of the run.
    """
    # rates that a method anneals are scaled at the start of its phase
    scaled = any(scale != 1 for phase in phases for scale in _rate_scales(phase, phase.start))

    def rates(step: int) -> dict[str, float]:
        rate = base(step)
        scales = _rate_scales(next(phase for phase in phases if step < phase.end), step) if scaled else []
        return {"lr": rate, **{f"stage{r}_lr": rate * scale for r, scale in enumerate(scales)}}

    return rates


def _rate_scales(phase: Phase, step: int) -> list[float]:
    method, contexts, k = phase.rules.method, phase.rules.contexts, step - phase.start
    return [method.learning_rate_scale(context, k) * context.rate_factor(k) for context in contexts]
