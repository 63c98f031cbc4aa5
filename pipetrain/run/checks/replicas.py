"""Stages with replicas: what a run must do without where several processes share the minibatches of a stage."""

from pipetrain.config.settings import Settings
from pipetrain.errors import ConfigError
from pipetrain.models.stateful_layer import stateful_layers
from pipetrain.models.ties import ties_between
from pipetrain.run.components import Components
from pipetrain.schedules import Replicas


def _check_replicas(settings: Settings, components: Components) -> list[str]:
    replicas = components.phases[0].rules.replicas
    if not replicas.several:
        return []
    of_plan = "the plan's " if settings.replicas.counts is None else ""
    given = f"{of_plan}partition.replicas={list(replicas.counts)}"
    _check_model(given, components)
    if components.finegrained:
        raise ConfigError(f"{given}: partition=finegrained has no replicas; any other partition has")
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
    return _notes(settings, replicas)


def _check_model(given: str, components: Components) -> None:
    chain = components.chain
    if components.finegrained:
        return
    if ties := ties_between(chain, components.bounds):
        raise ConfigError(f"{given}: {ties[0]}, whose gradients replicas do not sum; model.untie=true works")
    carrying = [label for label, layer in zip(chain.labels, chain.layers, strict=True) if stateful_layers(layer)]
    if carrying:
        raise ConfigError(
            f"{given}: layer {carrying[0]} carries its state from minibatch to minibatch, and the next one goes to "
            "another replica; a model that carries none works"
        )


def _notes(settings: Settings, replicas: Replicas) -> list[str]:
    """What becomes of the minibatches and of the learning rate."""
    first, several = replicas.counts[0], [(r, n) for r, n in enumerate(replicas.counts) if n > 1]
    notes = [f"stage {r} has {n} replicas, and updates with the mean gradient of {n} minibatches" for r, n in several]
    if settings.replicas.scale_lr and not replicas.even:
        scales = ", ".join(f"{n / first:.4g}" for n in replicas.counts)
        notes.append(f"partition.scale_lr=true: learning rates of the stages times {scales}")
    return notes


CHECKS = (_check_replicas,)
