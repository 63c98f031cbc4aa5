"""Replicas of stages: schedules that share minibatches among them, and what they cannot do."""

from collections.abc import Sequence

from pipetrain.engine.errors import ConfigError
from pipetrain.engine.executors.pipeline_rules import Phase
from pipetrain.engine.models.chain import LayerChain
from pipetrain.engine.models.stateful_layer import stateful_layers
from pipetrain.engine.models.ties import ties_between
from pipetrain.engine.schedules import ListSchedule, Replicas, Schedule
from pipetrain.engine.schedules.round_robin import RoundRobin
from pipetrain.runner.config.settings import ReplicaSettings, Settings
from pipetrain.runner.partition.run_plan import Plan


def replicated(schedule: Schedule, num_stages: int, replicas: ReplicaSettings) -> Schedule:
    """The schedule on so many replicas of each stage; itself where each has one.

    Raises:
        ConfigError: there are not as many numbers as stages, or the schedule has no lists.
    """
    counts = replicas.counts
    if counts is None:
        return schedule
    if len(counts) != num_stages:
        raise ConfigError(f"partition.replicas={list(counts)}: a number for each of {num_stages} stages is needed")
    if max(counts) == 1:
        return schedule
    if not isinstance(schedule, ListSchedule):
        raise ConfigError(
            f"partition.replicas={list(counts)}: schedule={schedule.name} is run by torch.distributed.pipelining, "
            "which knows no replicas; schedule=gpipe and 1f1b_flush do"
        )
    return RoundRobin(schedule, Replicas(counts), replicas.scale_lr)


def check_replicas(
    settings: Settings, chain: LayerChain, plan: Plan, phases: Sequence[Phase], steps_per_epoch: int
) -> list[str]:
    """Notes on minibatches per update and learning rates of replicated stages.

    Raises:
        ConfigError: replicas cannot train this model, or an epoch is too short for them.
    """
    replicas = phases[0].rules.replicas
    if plan.finegrained and max(settings.replicas.counts or (1,)) > 1:
        counts = list(settings.replicas.counts or ())
        raise ConfigError(
            f"partition.replicas={counts}: partition=finegrained has no replicas; any other partition has"
        )
    if not replicas.several:
        if (independent := max(phase.rules.method.independent_replicas for phase in phases)) > 1:
            _refuse_carriers(f"partition.replicas=[{independent}]", chain)
        return []
    of_plan = "the plan's " if settings.replicas.counts is None else ""
    given = f"{of_plan}partition.replicas={list(replicas.counts)}"
    _refuse_where_impossible(given, chain, plan, settings.train.precision)
    if (most := max(replicas.counts)) > steps_per_epoch:
        raise ConfigError(
            f"{given}: an epoch, after which the pipeline drains, has {steps_per_epoch} minibatches, too few for "
            f"{most} replicas to share; partition.replicas of at most {steps_per_epoch}, or a smaller "
            "train.batch_size, work"
        )
    return _notes(replicas, scales_lr=settings.replicas.scale_lr)


def _notes(replicas: Replicas, *, scales_lr: bool) -> list[str]:
    several = [(r, n) for r, n in enumerate(replicas.counts) if n > 1]
    notes = [f"stage {r} has {n} replicas, and updates with the mean gradient of {n} minibatches" for r, n in several]
    if scales_lr and not replicas.even:
        scales = ", ".join(f"{n / replicas.counts[0]:.4g}" for n in replicas.counts)
        notes.append(f"partition.scale_lr=true: learning rates of the stages times {scales}")
    return notes


def _refuse_where_impossible(given: str, chain: LayerChain, plan: Plan, precision: str) -> None:
    if ties := ties_between(chain, plan.bounds):
        raise ConfigError(f"{given}: {ties[0]}, whose gradients replicas do not sum; model.untie=true works")
    if precision == "fp16":
        raise ConfigError(
            f"{given}: replicas cannot scale the loss of train.precision=fp16; train.precision=bf16 works"
        )
    _refuse_carriers(given, chain)


def _refuse_carriers(given: str, chain: LayerChain) -> None:
    carrying = [label for label, layer in zip(chain.labels, chain.layers, strict=True) if stateful_layers(layer)]
    if carrying:
        raise ConfigError(
            f"{given}: layer {carrying[0]} carries its state from minibatch to minibatch, and the next one goes to "
            "another replica; a model that carries none works"
        )
