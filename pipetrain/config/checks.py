"""What can be wrong with settings, as far as neither model nor data are needed to tell."""

from operator import attrgetter
from typing import TYPE_CHECKING, Any

from pipetrain.errors import ConfigError

if TYPE_CHECKING:
    from pipetrain.config.schema import TrainConfig
    from pipetrain.config.settings import Settings

DEVICES = ("auto", "cpu", "cuda")
EXECUTORS = ("distributed", "simulated")

_LEAST = {
    "train.epochs": 1,
    "train.batch_size": 1,
    "train.microbatches": 1,
    "train.max_steps": 1,
    "eval.every_epochs": 0,
    "checkpoint.every_epochs": 0,
    "eval.batch_size": 1,
    "checkpoint.every_steps": 1,
    "checkpoint.keep_last": 1,
    "checkpoint.keep_best": 1,
    "log.every_steps": 1,
    "log.progress_seconds": 0,
}
_CHOICES = {"executor.name": EXECUTORS, "device": DEVICES}


def check(settings: "Settings") -> None:
    """Checks every setting that needs neither model nor data.

    Raises:
        ConfigError: the first setting that cannot work.
    """
    for setting, least in _LEAST.items():
        value = attrgetter(setting)(settings)
        if value is not None and value < least:
            raise ConfigError(f"{setting}={value}: at least {least}")
    for setting, choices in _CHOICES.items():
        if (value := attrgetter(setting)(settings)) not in choices:
            raise ConfigError(f"{setting}={value}: one of {', '.join(choices)}")
    _check_portions(settings.train)
    _check_target(settings.train.target)
    if settings.checkpoint.keep_best is not None and not settings.eval.every_epochs:
        raise ConfigError(
            f"checkpoint.keep_best={settings.checkpoint.keep_best}: eval.every_epochs=0 leaves nothing to compare by; "
            "set it to 1 or more"
        )
    if settings.threads is not None and settings.threads < 1:
        raise ConfigError(f"threads={settings.threads}: at least 1, or null for the cores divided by the stages")
    if settings.launch.hang_timeout <= 0:
        raise ConfigError(f"launch.hang_timeout={settings.launch.hang_timeout}: seconds above 0")
    if settings.launch.stop_timeout < 0:
        raise ConfigError(f"launch.stop_timeout={settings.launch.stop_timeout}: seconds; 0 for none")


def check_flag(setting: str, value: Any) -> None:
    """Checks that a value of an open section, whose types OmegaConf does not know, is true or false.

    Raises:
        ConfigError: it is something else.
    """
    if not isinstance(value, bool):
        raise ConfigError(f"{setting}={value}: true or false")


def check_number(setting: str, value: Any) -> None:
    """Checks that a value of an open section is a number or null.

    Raises:
        ConfigError: it is something else.
    """
    if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
        raise ConfigError(f"{setting}={value}: a number, or null")


def _check_portions(train: "TrainConfig") -> None:
    batch, microbatches = train.batch_size, train.microbatches
    if batch % microbatches:
        divisors = [n for n in range(1, batch + 1) if batch % n == 0]
        nearest = ", ".join(str(n) for n in sorted(divisors, key=lambda n: abs(n - microbatches))[:3])
        raise ConfigError(
            f"train.batch_size={batch} is not a multiple of train.microbatches={microbatches}; "
            f"microbatches that divide it: {nearest}"
        )


def _check_target(target: Any) -> None:
    if target is None:
        return
    if not isinstance(target, dict) or not target or not all(isinstance(x, int | float) for x in target.values()):
        raise ConfigError(f"train.target={target}: metrics and the values to reach, such as {{top1: 66}}")
