"""Checks of the pipeline: executor, schedules, methods and replicas work together."""

import math
from collections.abc import Iterable, Iterator, Sequence

import torch

from pipetrain.engine import outer_launcher
from pipetrain.engine.errors import ConfigError
from pipetrain.engine.executors.messages.links import given_bytes_per_s
from pipetrain.engine.executors.pipeline_rules import PipelineRules
from pipetrain.engine.libraries.processes import usable_cores
from pipetrain.engine.models.chain import LayerChain, trainable_weights
from pipetrain.engine.models.stateful_layer import stateful_layers
from pipetrain.engine.models.ties import ties_between
from pipetrain.engine.program.steady_state import minibatches_held
from pipetrain.engine.schedules import ListSchedule, Placement, Schedule
from pipetrain.runner.config.phases import naming_phase
from pipetrain.runner.config.schema import TrainConfig
from pipetrain.runner.config.settings import Settings
from pipetrain.runner.training.builders.optimizer import build_torch_optimizer, parameter_groups
from pipetrain.runner.training.components import Components

_INITIAL_SHARE = 0.01
"""Share of the initial weights in averages from which on a run warns."""
_THREADS_PER_CORE = 16
"""Upper limit: more only make a run slower. It is not 1, so that a run on a larger machine can be repeated here."""


def check_pipeline(settings: Settings, components: Components) -> Iterator[str]:
    """Notes on replicas, partition, clipping and idle stages.

    Raises:
        ConfigError: executor, schedules, methods and replicas do not work together.
    """
    yield from _replicas(settings, components)
    if components.plan.finegrained:
        _check_finegrained(settings)
    yield from components.plan.notes
    yield from _average(settings, components)
    if not settings.executor.simulated:
        _check_distributed(settings, components)
    for phase, chosen in zip(components.phases, settings.phases, strict=True):
        with naming_phase(chosen.number):
            yield from _lists(settings, components, phase.rules)
            yield from _method(settings, components.chain, phase.rules)
            yield from _clipping(settings.optimizer.clip_norm, phase.rules, chosen.choices["method"])
    _check_staleness(settings, components)
    if not components.plan.finegrained:
        yield from unfilled(
            [phase.rules.schedule for phase in components.phases], len(components.plan.bounds), settings.train
        )
    steps = components.timetable.steps_per_epoch
    for phase, chosen in zip(components.phases, settings.phases, strict=True):
        if (depth := chosen.schedule.options.get("depth")) is None:
            continue
        rules = phase.rules
        held = minibatches_held(rules.list_schedule, rules.num_stages, rules.num_microbatches)
        if held > steps:
            with naming_phase(chosen.number):
                raise ConfigError(
                    f"schedule.depth={depth} holds {held} minibatches, and an epoch, after which the pipeline drains, "
                    f"has {steps} steps; a smaller one works"
                )
    most = _THREADS_PER_CORE * usable_cores()
    for name, number in (("threads", settings.threads), ("dataset.workers", settings.dataset.workers)):
        if number is not None and number > most:
            raise ConfigError(
                f"{name}={number}: at most {most} here, {_THREADS_PER_CORE} for each of {usable_cores()} cores"
            )


def _check_staleness(settings: Settings, components: Components) -> None:
    log, schedules = settings.log, [phase.rules.schedule for phase in components.phases]
    unlisted = next((schedule for schedule in schedules if not isinstance(schedule, ListSchedule)), None)
    if log.staleness_every_steps is not None and unlisted is not None:
        raise ConfigError(
            f"log.staleness_every_steps={log.staleness_every_steps}: schedule={unlisted.name} is run by "
            "torch.distributed.pipelining, and has no staleness to measure; leave it out"
        )
    if not log.staleness_gradient:
        return
    given = "log.staleness_gradient=true"
    if log.staleness_every_steps is None:
        raise ConfigError(f"{given}: log.staleness_every_steps=null measures nothing; set it to a number of steps")
    if not settings.executor.simulated or components.plan.finegrained:
        raise ConfigError(
            f"{given} needs all stages of whole layers in one process; executor=simulated with another partition "
            "than finegrained works"
        )
    if components.phases[0].rules.replicas.several:
        raise ConfigError(f"{given}: the gradient of stages with replicas is of several minibatches; leave it out")
    ties = ties_between(components.chain, components.plan.bounds)
    carrying = any(map(stateful_layers, components.chain.layers))
    if ties or carrying:
        why = ties[0] if ties else "a layer carries its state from minibatch to minibatch"
        raise ConfigError(f"{given}: {why}; leave it out for this model")


def _check_finegrained(settings: Settings) -> None:
    train = settings.train
    if not settings.executor.simulated:
        raise ConfigError("partition=finegrained cuts layers apart, which only executor=simulated can run")
    if settings.trace:
        raise ConfigError("trace=true: with partition=finegrained no stage runs by itself; leave trace out")
    if train.recompute and train.recompute_boundaries is None:
        raise ConfigError(
            "train.recompute=true: with partition=finegrained stages begin inside layers; name the layers that "
            "segments begin with, such as train.recompute_boundaries=[0]"
        )


def _check_distributed(settings: Settings, components: Components) -> None:
    """Refuses features of the simulation alone, and a slowed link without a bandwidth."""
    given_bytes_per_s()
    for phase, chosen in zip(components.phases, settings.phases, strict=True):
        if phase.rules.method.simulated_only:
            with naming_phase(chosen.number):
                raise ConfigError(
                    f"method={chosen.choices['method']} reads weights that no pipeline of processes has; use "
                    "executor=simulated"
                )
    if settings.train.recompute_boundaries is not None:
        raise ConfigError(
            f"train.recompute_boundaries={settings.train.recompute_boundaries}: recomputation across stages is "
            "simulated only; use executor=simulated, or train.recompute=true, where each stage recomputes by itself"
        )


def _lists(settings: Settings, components: Components, rules: PipelineRules) -> list[str]:
    if not isinstance(rules.schedule, ListSchedule):
        rules.schedule.check_run(settings, components.data.train)
        _check_devices(components.device, components.placement)
        return rules.schedule.notes(rules.num_stages)
    if not components.plan.finegrained:  # its stages exchange nothing, and their lists are long
        rules.lists(2 * rules.steady + max(rules.replicas.counts))
    return []


def _check_devices(device: str, placement: Placement) -> None:
    """A library that moves the device's own memory needs a device for each process.

    Which devices the processes of an outer launcher have is known when they meet: each may see its own alone.
    """
    here = placement.num_processes
    if device == "cuda" and not outer_launcher.is_present() and torch.cuda.device_count() < here:
        raise ConfigError(
            f"device=cuda: torch.distributed.pipelining needs a CUDA device for each of {here} processes, and there "
            f"are {torch.cuda.device_count()}; device=cpu works"
        )


def _method(settings: Settings, chain: LayerChain, rules: PipelineRules) -> Iterable[str]:
    parameters = trainable_weights(chain.module)
    if not parameters:
        raise ConfigError("model: no parameter requires a gradient; there is nothing to train")
    groups = parameter_groups(settings.optimizer, parameters)
    rules.method.check_optimizer(build_torch_optimizer(settings.optimizer, groups))
    return rules.method.notes(rules.contexts)


def _clipping(limit: float | None, rules: PipelineRules, method: str) -> list[str]:
    if limit is None:
        return []
    where = "per stage, since asynchronous stages have no common norm"
    if not rules.replicas.even:
        where = "per stage, since stages with unlike numbers of replicas update at other times"
    elif rules.schedule.synchronous:
        where = "over all stages together"
    return [f"gradients are clipped to optimizer.clip_norm={limit} {where} (method={method})"]


def _average(settings: Settings, components: Components) -> list[str]:
    """A warning if the run is so short that its averages keep much of the initial weights."""
    decay = settings.train.ema
    if decay is None:
        return []
    updates = components.timetable.total_steps // max(components.phases[0].rules.replicas.counts)
    share, enough = decay**updates, math.ceil(math.log(_INITIAL_SHARE) / math.log(decay))
    if share <= _INITIAL_SHARE:
        return []
    return [
        f"warning: train.ema={decay}: averages after {updates:,} updates are still {share:.0%} initial weights; "
        f"{_INITIAL_SHARE:.0%} takes {enough:,} updates, or a smaller train.ema"
    ]


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


def _replicas(settings: Settings, components: Components) -> list[str]:
    """Notes on minibatches per update and learning rates of replicated stages."""
    replicas = components.phases[0].rules.replicas
    if not replicas.several:
        if (independent := max(phase.rules.method.independent_replicas for phase in components.phases)) > 1:
            _refuse_carriers(f"partition.replicas=[{independent}]", components.chain)
        return []
    of_plan = "the plan's " if settings.replicas.counts is None else ""
    given = f"{of_plan}partition.replicas={list(replicas.counts)}"
    if components.plan.finegrained:
        raise ConfigError(f"{given}: partition=finegrained has no replicas; any other partition has")
    if ties := ties_between(components.chain, components.plan.bounds):
        raise ConfigError(f"{given}: {ties[0]}, whose gradients replicas do not sum; model.untie=true works")
    _refuse_carriers(given, components.chain)
    if settings.train.precision == "fp16":
        raise ConfigError(
            f"{given}: replicas cannot scale the loss of train.precision=fp16; train.precision=bf16 works"
        )
    steps, most = components.timetable.steps_per_epoch, max(replicas.counts)
    if most > steps:
        raise ConfigError(
            f"{given}: an epoch, after which the pipeline drains, has {steps} minibatches, too few for {most} replicas "
            f"to share; partition.replicas of at most {steps}, or a smaller train.batch_size, work"
        )
    several = [(r, n) for r, n in enumerate(replicas.counts) if n > 1]
    notes = [f"stage {r} has {n} replicas, and updates with the mean gradient of {n} minibatches" for r, n in several]
    if settings.replicas.scale_lr and not replicas.even:
        scales = ", ".join(f"{n / replicas.counts[0]:.4g}" for n in replicas.counts)
        notes.append(f"partition.scale_lr=true: learning rates of the stages times {scales}")
    return notes


def _refuse_carriers(given: str, chain: LayerChain) -> None:
    carrying = [label for label, layer in zip(chain.labels, chain.layers, strict=True) if stateful_layers(layer)]
    if carrying:
        raise ConfigError(
            f"{given}: layer {carrying[0]} carries its state from minibatch to minibatch, and the next one goes to "
            "another replica; a model that carries none works"
        )
