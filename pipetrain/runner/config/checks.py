"""Checks of settings that need neither model nor data."""

from math import inf
from operator import attrgetter
from typing import Any

from omegaconf import MISSING

from pipetrain.engine.errors import ConfigError, as_configured, check_whole
from pipetrain.engine.number_range import BELOW_ONE, NOT_NEGATIVE, POSITIVE, NumberRange
from pipetrain.runner.config.choices import choice_of, choices_of, choices_of_run, names_of, section
from pipetrain.runner.config.schema import TARGET
from pipetrain.runner.config.settings import Settings

_NONE_OR_MORE = (
    "eval.every_epochs", "checkpoint.every_epochs", "launch.max_restarts", "averaging.delay", "averaging.rise_after",
)  # fmt: skip
_ONE_OR_MORE = (
    "threads", "train.epochs", "train.batch_size", "train.microbatches", "train.max_steps", "train.patience",
    "eval.batch_size", "eval.decode_every_epochs", "eval.beam_width",
    "checkpoint.every_steps", "checkpoint.keep_last", "checkpoint.keep_best",
    "log.every_steps", "log.staleness_every_steps", "topology.devices", "topology.cores", "planner.repeats",
)  # fmt: skip
_RANGES = {
    "averaging.share": (NumberRange(1e-6, 1, most_too=True), "such as 0.05; 1 for all"),
    "averaging.strength": (NOT_NEGATIVE, "1 for the whole correction"),
    "averaging.decay": (BELOW_ONE, "such as 0.5"),
    "averaging.final_decay": (BELOW_ONE, "such as 0.99"),
    "train.ema": (NumberRange(0, 1, least_too=False), "such as 0.99, or null for none"),
    "train.min_improvement": (NOT_NEGATIVE, "0 for any"),
    "checkpoint.every_minutes": (POSITIVE, "or null for none"),
    "launch.hang_timeout": (POSITIVE, "in seconds"),
    "launch.start_timeout": (POSITIVE, "in seconds"),
    "launch.stop_timeout": (NOT_NEGATIVE, "in seconds; 0 for none"),
    "eval.length_penalty": (NOT_NEGATIVE, "0 for none"),
    "log.progress_seconds": (NOT_NEGATIVE, "0 for only a line per epoch"),
    "topology.latency_s": (NOT_NEGATIVE, "in seconds; 0 for none"),
    "topology.update_gigabytes_per_s": (POSITIVE, "in 10^9 bytes/s"),
}
_ANY_NUMBER = NumberRange(least=-inf)
_SEEDS = 2**63
CHOICES = {
    "averaging.average": ("gradients", "weights"),
    "averaging.correction": ("ema", "update", "none"),
    "executor.name": ("distributed", "simulated"),
    "device": ("auto", "cpu", "cuda"),
    "train.precision": ("fp32", "bf16", "fp16"),
    "eval.length_penalty_form": ("fairseq", "gnmt"),
    "planner.cost_model": ("ring_allreduce", "pipedream_paper"),
    "planner.objective": ("time", "memory"),
    "log.callback_errors": ("warn", "stop"),
}
"""Settings that are one of a few words."""
TRACKERS = {
    "tensorboard": "pipetrain.runner.tracking.trackers.tensorboard.TensorBoard",
    "mlflow": "pipetrain.plugins.trackers.mlflow.MLflow",
    "wandb": "pipetrain.plugins.trackers.wandb.WandB",
}
"""Name of a tracker in `log.to` -> its class."""


def check(settings: Settings) -> None:
    """Raises a ConfigError for the first setting that cannot work, as far as neither model nor data are needed."""
    _check_numbers(settings)
    for setting, choices in CHOICES.items():
        if (value := attrgetter(setting)(settings)) not in choices:
            raise ConfigError(f"{setting}={value}: must be one of {', '.join(choices)}")
    if not 0 <= settings.seed < _SEEDS:
        raise ConfigError(f"seed={settings.seed}: must be in [0, 2**63)")
    if (stages := settings.partition.options.get("stages")) not in (None, MISSING):
        check_whole("partition.stages", stages, least=1)
    _check_trackers(settings.log.to)
    _check_tasks(settings)
    batch, microbatches = settings.train.batch_size, settings.train.microbatches
    if batch % microbatches:
        raise ConfigError(f"train.batch_size={batch}: must be a multiple of train.microbatches={microbatches}")
    _check_comparisons(settings)


def _check_numbers(settings: Settings) -> None:
    for setting, least in (*((each, 1) for each in _ONE_OR_MORE), *((each, 0) for each in _NONE_OR_MORE)):
        value = attrgetter(setting)(settings)
        if value is not None and value < least:
            raise ConfigError(f"{setting}={value}: must be at least {least}")
    for setting, (accepted, hint) in _RANGES.items():
        if (value := attrgetter(setting)(settings)) is not None:
            accepted.check(setting, value, hint)


def _check_trackers(names: Any) -> None:
    if not isinstance(names, list):
        raise ConfigError(f"log.to={as_configured(names)}: must be a list of {', '.join(TRACKERS)}")
    for name in map(str, names):
        if name not in TRACKERS or names.count(name) > 1:
            why = "is listed twice" if name in TRACKERS else f"is not one of {', '.join(TRACKERS)}"
            raise ConfigError(f"log.to=[{','.join(map(str, names))}]: {name} {why}")


def _check_comparisons(settings: Settings) -> None:
    """Checks the settings that compare metrics, which need evaluations."""
    train, target = settings.train, settings.train.target
    maps_to_numbers = isinstance(target, dict) and target and all(value in _ANY_NUMBER for value in target.values())
    if target is not None and not maps_to_numbers:
        raise ConfigError(f"train.target={target}: must map metrics to the values to reach, such as {{top1: 66}}")
    if train.min_improvement and train.patience is None:
        raise ConfigError(f"train.min_improvement={train.min_improvement}: requires train.patience, such as 3")
    for setting in ("train.patience", "train.target", "checkpoint.keep_best"):
        value = attrgetter(setting)(settings)
        if value is not None and not settings.eval.every_epochs:
            raise ConfigError(f"{setting}={value}: needs evaluations, but eval.every_epochs=0; set it to 1 or more")


def task_of(group: str, name: str) -> str | None:
    """The task of a data set, or of the model's own data set, such as "translation"; None if its file names none."""
    dataset = name if group == "dataset" else choices_of_run({"model": name})["dataset"]
    return choice_of("dataset", dataset).remarks.get("task")


def _check_tasks(settings: Settings) -> None:
    """Checks that the chosen model can learn from the chosen data set; custom ones are not checked."""
    if not (_is_bundled(settings, "model") and _is_bundled(settings, "dataset")):
        return
    model, dataset = settings.choices["model"], settings.choices["dataset"]
    task, other = task_of("model", model), task_of("dataset", dataset)
    if task and other and task != other:
        fitting = [each.name for each in choices_of("dataset") if each.remarks.get("task") == task]
        raise ConfigError(
            f"model={model} dataset={dataset}: the model is for {task}, the data set for {other}; "
            f"choose from {', '.join(fitting)}"
        )


def _is_bundled(settings: Settings, group: str) -> bool:
    """True if the target of the model or data set is that of the choice, not replaced by the user."""
    name = settings.choices.get(group, "")
    path = (settings.model if group == "model" else settings.dataset).target.path
    return name in names_of(group) and section(group, name).get(TARGET) == path
