"""Checks of the pipeline: executor, schedules, methods and optimizer work together, and on this machine."""

from collections.abc import Iterator, Sequence

from pipetrain.data.loader import Loader
from pipetrain.engine.errors import ConfigError
from pipetrain.engine.executors.messages.links import given_bytes_per_s
from pipetrain.engine.executors.pipeline_rules import PipelineRules
from pipetrain.engine.models.chain import trainable_weights
from pipetrain.engine.program.steady_state import minibatches_held
from pipetrain.engine.schedules import ListSchedule, Schedule
from pipetrain.runner.config.phases import PhaseSettings, naming_phase
from pipetrain.runner.config.schema import ExecutorConfig, LogConfig, TrainConfig
from pipetrain.runner.config.settings import Settings
from pipetrain.runner.training.components.machine import check_devices
from pipetrain.runner.training.components.optimizer import build_torch_optimizer, parameter_groups
from pipetrain.runner.training.components.stages import StagedModel


def check_pipeline(settings: Settings, staged: StagedModel, train: Loader, device: str) -> Iterator[str]:
    """Notes on partition, methods, clipping and idle stages."""
    finegrained = staged.plan.finegrained
    yield from staged.plan.notes
    if finegrained:
        _check_finegrained(settings.executor, settings.train, trace=settings.trace)
    if not settings.executor.simulated:
        _check_distributed(settings.train)
    check_staleness(settings.log, settings.executor, staged)
    parameters = trainable_weights(staged.chain.module)
    if not parameters:
        raise ConfigError("model: no parameter requires a gradient; there is nothing to train")
    optimizer = build_torch_optimizer(settings.optimizer, parameter_groups(settings.optimizer, parameters))
    for phase, chosen in zip(staged.phases, settings.phases, strict=True):
        rules = phase.rules
        with naming_phase(chosen.number):
            if rules.method.simulated_only and not settings.executor.simulated:
                raise ConfigError(
                    f"method={chosen.choices['method']} reads weights that no pipeline of processes has; use "
                    "executor=simulated"
                )
            rules.method.check_optimizer(optimizer)
            if not isinstance(rules.schedule, ListSchedule):
                rules.schedule.check_run(settings, train)
                check_devices(device, rules.placement.num_processes)
            elif not finegrained:  # its stages exchange nothing, and their lists are long
                rules.check_lists()
            _check_depth(chosen, rules, len(train))
            yield from rules.method.notes(rules.contexts)
            yield from _clipping(settings.optimizer.clip_norm, rules, chosen.choices["method"])
            yield from rules.schedule.notes(rules.num_stages)
    if not finegrained:
        yield from unfilled(staged.schedules, len(staged.plan.bounds), settings.train)


def _check_depth(chosen: PhaseSettings, rules: PipelineRules, steps: int) -> None:
    if (depth := chosen.schedule.options.get("depth")) is None:
        return
    held = minibatches_held(rules.list_schedule, rules.num_stages, rules.num_microbatches)
    if held > steps:
        raise ConfigError(
            f"schedule.depth={depth}: holds {held} minibatches in flight, but the pipeline drains after each epoch of "
            f"{steps} steps; use a smaller depth"
        )


def _clipping(limit: float | None, rules: PipelineRules, method: str) -> list[str]:
    if limit is None:
        return []
    where = "per stage, since asynchronous stages have no common norm"
    if rules.replicas.train_alone:
        where = "per stage, since replicas train alone"
    elif not rules.replicas.even:
        where = "per stage, since stages with unlike numbers of replicas update at other times"
    elif rules.schedule.synchronous:
        where = "over all stages together"
    return [f"gradients are clipped to optimizer.clip_norm={limit} {where} (method={method})"]


def check_staleness(log: LogConfig, executor: ExecutorConfig, staged: StagedModel) -> None:
    """Raises a ConfigError if the staleness that a run asks for cannot be measured."""
    unlisted = staged.unlisted
    if log.staleness_every_steps is not None and unlisted is not None:
        raise ConfigError(
            f"log.staleness_every_steps={log.staleness_every_steps}: schedule={unlisted.name} is run by "
            "torch.distributed.pipelining, and has no staleness to measure; leave it out"
        )
    if log.staleness_gradient:
        _check_staleness_gradient(log, executor, staged)


def _check_staleness_gradient(log: LogConfig, executor: ExecutorConfig, staged: StagedModel) -> None:
    given = "log.staleness_gradient=true"
    if log.staleness_every_steps is None:
        raise ConfigError(f"{given}: log.staleness_every_steps=null measures nothing; set it to a number of steps")
    if not executor.simulated or staged.plan.finegrained:
        raise ConfigError(
            f"{given}: needs all stages in one process, and whole layers; use executor=simulated and another partition "
            "than finegrained"
        )
    if staged.replicas.several:
        raise ConfigError(f"{given}: stages with replicas average gradients of several minibatches; leave it out")
    if staged.ties or staged.carrying:
        why = staged.ties[0] if staged.ties else "a layer carries its state from minibatch to minibatch"
        raise ConfigError(f"{given}: {why}; leave it out for this model")


def _check_finegrained(executor: ExecutorConfig, train: TrainConfig, *, trace: bool) -> None:
    if not executor.simulated:
        raise ConfigError("partition=finegrained cuts layers apart, which only executor=simulated can run")
    if trace:
        raise ConfigError("trace=true: with partition=finegrained no stage runs by itself; leave trace out")
    if train.recompute and train.recompute_boundaries is None:
        raise ConfigError(
            "train.recompute=true: with partition=finegrained stages begin inside layers; name the layers that "
            "segments begin with, such as train.recompute_boundaries=[0]"
        )


def _check_distributed(train: TrainConfig) -> None:
    """Refuses features of the simulation alone, and a slowed link without a bandwidth."""
    given_bytes_per_s()
    if train.recompute_boundaries is not None:
        raise ConfigError(
            f"train.recompute_boundaries={train.recompute_boundaries}: recomputation across stages is "
            "simulated only; use executor=simulated, or train.recompute=true, where each stage recomputes by itself"
        )


def unfilled(schedules: Sequence[Schedule], stages: int, train: TrainConfig) -> list[str]:
    """A warning for each schedule that only microbatches fill, where there is one."""
    if train.microbatches > 1 or stages == 1:
        return []
    enough = (n for n in range(stages, train.batch_size + 1) if train.batch_size % n == 0)
    advice = f"set train.microbatches={n}" if (n := next(enough, None)) else "set train.microbatches"
    return [
        f"warning: train.microbatches=1: under schedule={schedule.name} only one of the {stages} stages works at a "
        f"time, as in plain training; {advice} to run them side by side"
        for schedule in schedules
        if isinstance(schedule, ListSchedule) and schedule.synchronous and schedule.in_flight(0, stages, stages) > 1
    ]
