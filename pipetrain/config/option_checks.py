"""Checks of the options of open sections, whose types the schema does not know."""

from collections.abc import Mapping
from typing import Any

from pipetrain.errors import ConfigError, as_configured
from pipetrain.number_range import BELOW_ONE, NOT_NEGATIVE, POSITIVE, SHARE

_RANGES = {
    "momentum": BELOW_ONE,
    "dampening": SHARE,
    "alpha": BELOW_ONE,
    "weight_decay": NOT_NEGATIVE,
    "eps": NOT_NEGATIVE,
    "lr_decay": NOT_NEGATIVE,
    "momentum_decay": NOT_NEGATIVE,
    "initial_accumulator_value": NOT_NEGATIVE,
}
_FLAGS = ("nesterov", "centered", "decoupled_weight_decay", "amsgrad", "maximize")


def check_flag(setting: str, value: Any) -> None:
    """Checks that a value of an open section, whose types OmegaConf does not know, is true or false.

    Raises:
        ConfigError: it is something else.
    """
    if not isinstance(value, bool):
        raise ConfigError(f"{setting}={value}: true or false")


def check_options(path: str, options: Mapping[str, Any]) -> None:
    """Checks the options of an optimizer; of one that is not torch's, which may mean something else, only `lr`.

    Raises:
        ConfigError: the first that is out of its range.
    """
    if options.get("lr") is not None:
        POSITIVE.check("optimizer.lr", options["lr"])
    if not path.startswith("torch.optim."):
        return
    for name, value in options.items():
        setting = f"optimizer.{name}"
        if name in _FLAGS:
            check_flag(setting, value)
        elif name == "betas":
            _check_betas(setting, value)
        elif name in _RANGES:
            _RANGES[name].check(setting, value)


def _check_betas(setting: str, value: Any) -> None:
    if not isinstance(value, list) or len(value) != 2 or any(each not in BELOW_ONE for each in value):
        raise ConfigError(
            f"{setting}={as_configured(value)}: two numbers of at least 0 and below 1, such as [0.9,0.999]"
        )
