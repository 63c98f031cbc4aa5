"""Replicas of stages: schedules that share minibatches among them, and what they cannot do."""

from pipetrain.engine.errors import ConfigError
from pipetrain.engine.schedules import ListSchedule, Replicas, Schedule
from pipetrain.engine.schedules.round_robin import RoundRobin
from pipetrain.runner.config.settings import ReplicaSettings, Settings
from pipetrain.runner.training.components.averaging import averaging_notes, options_without_effect, refuse_averaging
from pipetrain.runner.training.components.stages import StagedModel


def replicated(schedule: Schedule, num_stages: int, replicas: ReplicaSettings) -> Schedule:
    """The schedule on so many replicas of each stage; itself where each has one.

    Raises:
        ConfigError: there are not as many numbers as stages, or the schedule has no lists.
    """
    counts = replicas.counts
    if counts is None:
        return schedule
    if len(counts) != num_stages:
        raise ConfigError(f"partition.replicas={list(counts)}: must have a number for each of {num_stages} stages")
    if max(counts) == 1:
        return schedule
    if not isinstance(schedule, ListSchedule):
        raise ConfigError(
            f"partition.replicas={list(counts)}: schedule={schedule.name} is run by torch.distributed.pipelining, "
            "which knows no replicas; schedule=gpipe and 1f1b_flush do"
        )
    return RoundRobin(schedule, Replicas(counts, replicas.delay), replicas.scale_lr)


def check_replicas(settings: Settings, staged: StagedModel, steps_per_epoch: int, total_steps: int) -> list[str]:
    """Notes on minibatches per update, learning rates and averages of replicated stages."""
    replicas, asked = staged.replicas, settings.replicas.counts
    if staged.plan.finegrained and max(asked or (1,)) > 1:
        raise ConfigError(
            f"partition.replicas={list(asked or ())}: not possible with partition=finegrained; use another partition"
        )
    if not replicas.several:
        independent = max(phase.rules.method.independent_replicas for phase in staged.phases)
        if independent > 1:
            _refuse_carriers(f"partition.replicas=[{independent}]", staged)
        refuse_averaging(settings, replicas, independent)
        return options_without_effect(settings)
    refuse_averaging(settings, replicas, 1)
    of_plan = "the plan's " if asked is None else ""
    given = f"{of_plan}partition.replicas={list(replicas.counts)}"
    _refuse_where_impossible(given, staged, settings.train.precision)
    if (most := max(replicas.counts)) > steps_per_epoch:
        raise ConfigError(
            f"{given}: an epoch has {steps_per_epoch} minibatches, too few for {most} replicas; use at most "
            f"{steps_per_epoch} replicas, or a smaller train.batch_size"
        )
    if replicas.train_alone:
        return averaging_notes(settings, replicas, total_steps)
    return [*_notes(replicas, scales_lr=settings.replicas.scale_lr), *options_without_effect(settings)]


def _notes(replicas: Replicas, *, scales_lr: bool) -> list[str]:
    several = [(r, n) for r, n in enumerate(replicas.counts) if n > 1]
    notes = [f"stage {r} has {n} replicas, and updates with the mean gradient of {n} minibatches" for r, n in several]
    if scales_lr and not replicas.even:
        scales = ", ".join(f"{n / replicas.counts[0]:.4g}" for n in replicas.counts)
        notes.append(f"partition.scale_lr=true: learning rates of the stages times {scales}")
    return notes


def _refuse_where_impossible(given: str, staged: StagedModel, precision: str) -> None:
    if staged.ties:
        raise ConfigError(f"{given}: {staged.ties[0]}, whose gradients replicas do not sum; model.untie=true works")
    if precision == "fp16":
        raise ConfigError(
            f"{given}: replicas cannot scale the loss of train.precision=fp16; train.precision=bf16 works"
        )
    _refuse_carriers(given, staged)


def _refuse_carriers(given: str, staged: StagedModel) -> None:
    if staged.carrying:
        raise ConfigError(
            f"{given}: layer {staged.carrying[0]} carries its state from minibatch to minibatch, and the next one goes "
            "to another replica; a model that carries none works"
        )
