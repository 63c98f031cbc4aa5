"""Checks of settings that need neither model nor data."""

from collections.abc import Mapping
from math import inf, isqrt
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from omegaconf import MISSING

from pipetrain.config.choices import choice_of, choices_of, choices_of_run, names_of, section
from pipetrain.config.schema import TARGET
from pipetrain.errors import ConfigError, check_whole
from pipetrain.number_range import NOT_NEGATIVE, POSITIVE, NumberRange

if TYPE_CHECKING:
    from pipetrain.config.schema import TrainConfig
    from pipetrain.config.settings import Settings


DEVICES = ("auto", "cpu", "cuda")
EXECUTORS = ("distributed", "simulated")
LENGTH_PENALTIES = ("fairseq", "gnmt")
COST_MODELS = ("ring_allreduce", "pipedream_paper")
OBJECTIVES = ("time", "memory")
CACHES = ("use", "renew", "ignore")
PRECISIONS = ("fp32", "bf16", "fp16")

_LEAST = {
    "train.epochs": 1,
    "train.batch_size": 1,
    "train.microbatches": 1,
    "train.max_steps": 1,
    "eval.every_epochs": 0,
    "checkpoint.every_epochs": 0,
    "eval.batch_size": 1,
    "eval.decode_every_epochs": 1,
    "eval.beam_width": 1,
    "checkpoint.every_steps": 1,
    "checkpoint.keep_last": 1,
    "checkpoint.keep_best": 1,
    "log.every_steps": 1,
    "launch.max_restarts": 0,
    "topology.devices": 1,
    "topology.cores": 1,
    "planner.repeats": 1,
}
_SEEDS = 2**63
_ANY_NUMBER = NumberRange(least=-inf)
CHOICES = {
    "executor.name": EXECUTORS,
    "device": DEVICES,
    "train.precision": PRECISIONS,
    "eval.length_penalty_form": LENGTH_PENALTIES,
    "planner.cost_model": COST_MODELS,
    "planner.objective": OBJECTIVES,
    "planner.cache": CACHES,
}
"""Settings that are one of a few words."""


def check(settings: "Settings") -> None:
    """Checks every setting that needs neither model nor data.

    Raises:
        ConfigError: the first setting that cannot work.
    """
    for setting, least in _LEAST.items():
        value = attrgetter(setting)(settings)
        if value is not None and value < least:
            raise ConfigError(f"{setting}={value}: at least {least}")
    for setting, choices in CHOICES.items():
        if (value := attrgetter(setting)(settings)) not in choices:
            raise ConfigError(f"{setting}={value}: one of {', '.join(choices)}")
    check_tasks(settings)
    _check_portions(settings.train)
    _check_target(settings)
    _check_checkpoints(settings)
    if settings.threads is not None and settings.threads < 1:
        raise ConfigError(f"threads={settings.threads}: at least 1, or null for the cores divided by the stages")
    if not 0 <= settings.seed < _SEEDS:
        raise ConfigError(f"seed={settings.seed}: at least 0 and below 2 ** 63")
    for setting in ("launch.hang_timeout", "launch.start_timeout"):
        POSITIVE.check(setting, attrgetter(setting)(settings), "in seconds")
    NOT_NEGATIVE.check("launch.stop_timeout", settings.launch.stop_timeout, "in seconds; 0 for none")
    NOT_NEGATIVE.check("eval.length_penalty", settings.eval.length_penalty, "0 for none")
    NOT_NEGATIVE.check("log.progress_seconds", settings.log.progress_seconds, "0 for only a line per epoch")
    NOT_NEGATIVE.check("topology.latency_s", settings.topology.latency_s, "in seconds; 0 for none")
    if settings.topology.update_gigabytes_per_s is not None:
        POSITIVE.check("topology.update_gigabytes_per_s", settings.topology.update_gigabytes_per_s, "in 10^9 bytes/s")
    _check_stages(settings.partition.options)


def _check_stages(partition: Mapping[str, Any]) -> None:
    stages = partition.get("stages")
    if stages not in (None, MISSING):
        check_whole("partition.stages", stages, least=1)


def _check_checkpoints(settings: "Settings") -> None:
    keeps = settings.checkpoint
    if keeps.every_minutes is not None:
        POSITIVE.check("checkpoint.every_minutes", keeps.every_minutes, "or null for none")
    if keeps.keep_best is not None and not settings.eval.every_epochs:
        raise ConfigError(
            f"checkpoint.keep_best={keeps.keep_best}: eval.every_epochs=0 leaves nothing to compare by; set it to 1 or "
            "more"
        )


def _check_portions(train: "TrainConfig") -> None:
    batch, microbatches = train.batch_size, train.microbatches
    if batch % microbatches:
        divisors = {each for low in range(1, isqrt(batch) + 1) if batch % low == 0 for each in (low, batch // low)}
        nearest = ", ".join(map(str, sorted(sorted(divisors, key=lambda n: (abs(n - microbatches), n))[:3])))
        raise ConfigError(
            f"train.batch_size={batch} is not a multiple of train.microbatches={microbatches}; "
            f"the nearest that divide it are {nearest}"
        )


def _check_target(settings: "Settings") -> None:
    target = settings.train.target
    if target is None:
        return
    if not isinstance(target, dict) or not target or any(value not in _ANY_NUMBER for value in target.values()):
        raise ConfigError(f"train.target={target}: metrics and the values to reach, such as {{top1: 66}}")
    if settings.eval.every_epochs == 0:
        raise ConfigError(f"train.target={target}: eval.every_epochs=0 evaluates nothing that could reach it")


def task_of(group: str, name: str) -> str:
    """The task of a data set, or of the model's own data set, such as "translation"."""
    dataset = name if group == "dataset" else choices_of_run({"model": name})["dataset"]
    return choice_of("dataset", dataset).remarks["task"]


def check_tasks(settings: "Settings") -> None:
    """Checks that the chosen model can learn from the chosen data set; custom ones are not checked.

    Raises:
        ConfigError: they are for different tasks.
    """
    if not (_is_bundled(settings, "model") and _is_bundled(settings, "dataset")):
        return
    model, dataset = settings.choices["model"], settings.choices["dataset"]
    task, other = task_of("model", model), task_of("dataset", dataset)
    if task != other:
        fitting = [each.name for each in choices_of("dataset") if each.remarks["task"] == task]
        raise ConfigError(
            f"model={model} dataset={dataset}: the model is for {task}, and the data set for {other}; data sets for "
            f"{task} are {', '.join(fitting)}"
        )


def _is_bundled(settings: "Settings", group: str) -> bool:
    """True if the model or data set is the choice's, and not another one under its name."""
    name = settings.choices.get(group, "")
    path = (settings.model if group == "model" else settings.dataset).target.path
    return name in names_of(group) and section(group, name)[TARGET] == path
