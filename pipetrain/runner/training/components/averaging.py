"""Replicas that train alone: how their weights are averaged, and what goes with that."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from pipetrain.engine.errors import ConfigError, as_configured
from pipetrain.engine.schedules import Replicas
from pipetrain.engine.stage.replica_weights import Averaging
from pipetrain.runner.config.instantiate import Target
from pipetrain.runner.config.schema import AveragingConfig
from pipetrain.runner.config.settings import Settings, replicas_train_alone
from pipetrain.runner.config.settings_diff import Difference
from pipetrain.runner.training.timetable import Timetable

_UNDER_WAY = ("averaging.average", "averaging.share", "averaging.delay")
"""Settings that say which averages of weights are under way."""


def build_averaging(settings: Settings, replicas: Replicas, timetable: Timetable) -> Averaging | None:
    """The averaging of the weights of replicas that train alone; None if there are none."""
    if not replicas.train_alone:
        return None
    count = max(replicas.counts)
    updates = sum(-(-interval.minibatches // count) for interval in timetable.intervals(0))
    averaging: Averaging = replace(averaging_rule(settings), updates=updates)
    return averaging


def averaging_rule(settings: Settings) -> Any:
    """The zoo's `WeightAveraging`, which the runner names and does not import, for a run of unknown length."""
    rule, options = Target("", "pipetrain.zoo.weight_averaging.WeightAveraging", {}), asdict(settings.averaging)
    del options["average"]
    return rule.located()(**options, seed=settings.seed)


def refuse_averaging(settings: Settings, replicas: Replicas, independent: int) -> None:
    """Raises a ConfigError if replicas are to train alone and cannot; `independent` are those of a method."""
    given = "averaging.average=weights"
    if settings.replicas.delay is None:
        return
    if independent > 1:
        method = settings.choices["method"]
        raise ConfigError(f"{given}: method={method} has replicas of its own; method=data_parallel works")
    if not replicas.several:
        raise ConfigError(
            f"{given}: no stage has replicas; set partition.replicas, such as [2,2], or leave averaging.average out"
        )
    if settings.train.ema is not None:
        raise ConfigError(
            f"{given} with train.ema={settings.train.ema}: evaluations read the mean over the replicas; leave one out"
        )


def averaging_notes(settings: Settings, replicas: Replicas, total_steps: int) -> list[str]:
    """Notes on how the weights of replicas that train alone are averaged."""
    given, count, parts = settings.averaging, max(replicas.counts), averaging_rule(settings).parts
    updates = total_steps // count
    notes = [
        f"{count} replicas train alone, each on 1 of {count} minibatches; {1 / parts:.3g} of the weights is "
        f"averaged after each update, {given.delay} updates late"
    ]
    if updates <= given.delay:
        notes.append(f"warning: averaging.delay={given.delay}: nothing is averaged in {updates} updates")
    elif parts <= given.delay and given.correction != "none":
        notes.append(
            f"warning: averaging.share={given.share} averaging.delay={given.delay}: weights are averaged again before "
            "their last average has come, and replicas may drift apart; averaging.correction=none or "
            f"averaging.share={1 / (given.delay + 1):.2g} works"
        )
    return notes


def options_without_effect(settings: Settings) -> list[str]:
    """A warning of an option of `averaging` that only matters to replicas that train alone, where none do."""
    usual = asdict(AveragingConfig())
    given = [(name, value) for name, value in asdict(settings.averaging).items() if value != usual[name]]
    return [
        f"warning: averaging.{name}={as_configured(value)}: has no effect, because averaging.average=gradients"
        for name, value in given[:1]
    ]


def check_resumed_averaging(
    settings: Settings,
    replicas: Replicas,
    progress: Mapping[str, Any],
    config: Mapping[str, Any],
    changes: Sequence[Difference],
) -> None:
    """Raises a ConfigError if replicas that train alone cannot go on as many, and with the averages under way.

    `progress` and `config` are a checkpoint's, from whose settings those of the run have `changes`.
    """
    if not replicas_train_alone(config["settings"]):
        return
    wrong = [each for each in changes if each.setting in _UNDER_WAY]
    counts = progress.get("replicas") or [1]
    if max(counts) != max(replicas.counts):
        wrong.append(Difference("partition.replicas", list(counts), list(replicas.counts)))
    for each in wrong[:1]:
        old = f"{each.setting}={as_configured(each.old)}"
        raise ConfigError(
            f"resume={settings.resume}: replicas train alone there, with {old}, and this run has "
            f"{each.setting}={as_configured(each.new)}; give {old} again, or start a new run from the mean of the "
            "replicas with model.weights"
        )
