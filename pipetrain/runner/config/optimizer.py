"""The settings of the optimizer, and of the groups of parameters that it updates with other options."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from fnmatch import fnmatchcase
from typing import Any, Self

from pipetrain.engine.errors import ConfigError, as_configured, check_flag, check_whole
from pipetrain.engine.number_range import BELOW_ONE, NOT_NEGATIVE, POSITIVE, SHARE, NumberRange
from pipetrain.runner.config.instantiate import Target
from pipetrain.runner.config.schema import UpdateConfig

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
_OURS = ("torch.optim.", "pipetrain.engine.optim.", "pipetrain.zoo.optim.")
"""Beginnings of targets whose options have these ranges; in a user's own they may mean something else."""
_MOMENTUM = NumberRange(0, 1, least_too=False)
_BETAS = ("betas", "adamw_betas")
CONDITIONS = ("match", "max_dims")
"""The keys of a group that say which parameters it has; any other key is an option."""


@dataclass(frozen=True)
class ParameterGroup:
    """Parameters that are updated with other options.

    Attributes:
        setting: name on the command line, such as `optimizer.groups[0]`.
        patterns: of names in the model's state dict, of which one must match; empty: any name.
        max_dims: largest number of dimensions; None: any number.
        options: of torch's parameter group, and `lr_scale`.
    """

    setting: str
    patterns: tuple[str, ...]
    max_dims: int | None
    options: Mapping[str, Any]

    @classmethod
    def of(cls, setting: str, content: Any) -> Self:
        """The group of an entry of `optimizer.groups`."""
        if not isinstance(content, Mapping) or all(content.get(condition) is None for condition in CONDITIONS):
            raise ConfigError(f"{setting}={as_configured(content)}: must be a mapping with match or max_dims")
        max_dims = content.get("max_dims")
        if max_dims is not None:
            check_whole(f"{setting}.max_dims", max_dims, least=0, otherwise="or null for any number")
        if "lr_scale" in content:
            NOT_NEGATIVE.check(f"{setting}.lr_scale", content["lr_scale"])
        options = {str(name): value for name, value in content.items() if name not in CONDITIONS}
        return cls(setting, _patterns(f"{setting}.match", content.get("match")), max_dims, options)

    def takes(self, name: str, dims: int) -> bool:
        """True if the conditions hold for a parameter of this name and number of dimensions."""
        named = not self.patterns or any(fnmatchcase(name, pattern) for pattern in self.patterns)
        return named and (self.max_dims is None or dims <= self.max_dims)


def _patterns(setting: str, match: Any) -> tuple[str, ...]:
    patterns = match if isinstance(match, list) else [] if match is None else [match]
    if match == [] or not all(isinstance(pattern, str) for pattern in patterns):
        raise ConfigError(
            f"{setting}={as_configured(match)}: must be a pattern of parameter names, such as embedding.*, or a list"
        )
    return tuple(patterns)


@dataclass(frozen=True, kw_only=True)
class OptimizerSettings(UpdateConfig):
    """An optimizer: its target is a class of torch.optim, which the parameters of a stage are given to.

    Attributes:
        momentum_by_stage: the momentum of the last stage, and what earlier ones approach; None if all have the same.
    """

    target: Target
    groups: tuple[ParameterGroup, ...] = ()
    momentum_by_stage: tuple[float, float] | None = None

    @classmethod
    def of(cls, section: Mapping[str, Any]) -> Self:
        """The settings of the section `optimizer`."""
        names = [each.name for each in fields(UpdateConfig)]
        common = UpdateConfig(**{name: section[name] for name in names if name in section})
        _check_common(common)
        options = {key: value for key, value in section.items() if key not in names}
        target = Target.of("optimizer", options if common.lr is None else {**options, "lr": common.lr})
        entries = enumerate(common.groups or ())
        groups = tuple(ParameterGroup.of(f"optimizer.groups[{i}]", entry) for i, entry in entries)
        if target.path.startswith(_OURS):
            _check_options("optimizer", options)
            for group in groups:
                _check_options(group.setting, group.options)
        momenta = None if common.momentum_by_stage is None else tuple(common.momentum_by_stage)
        return cls(**{**vars(common), "target": target, "groups": groups, "momentum_by_stage": momenta})

    def options_of_stage(self, stage: int, num_stages: int) -> dict[str, Any]:
        """Options of the target that `momentum_by_stage` sets; none without it.

        The momentum of stage r is low + (high - low)·(D - 1 - r)/D, as in the code of Ajanthan et al. 2025.

        Raises:
            ConfigError: the optimizer has no momentum.
        """
        if self.momentum_by_stage is None:
            return {}
        low, high = self.momentum_by_stage
        momentum = low + (high - low) * (num_stages - 1 - stage) / num_stages
        taken = {**{name: each.default for name, each in self.target.parameters().items()}, **self.target.options}
        betas = {name: taken[name] for name in _BETAS if isinstance(taken.get(name), list | tuple)}
        options: dict[str, Any] = {name: [momentum, *each[1:]] for name, each in betas.items()}
        if taken.get("momentum"):
            options["momentum"] = momentum
        if not options:
            kind = self.target.path + (" with momentum=0" if "momentum" in taken else "")
            given = f"optimizer.momentum_by_stage={list(self.momentum_by_stage)}"
            raise ConfigError(f"{given}: {kind} has no momentum; optimizer=sgdm has")
        return options

    def group_of(self, name: str, dims: int) -> int:
        """Number of the first group that takes a parameter, from 1; 0 if none does."""
        return next((number for number, group in enumerate(self.groups, 1) if group.takes(name, dims)), 0)


def _check_common(common: UpdateConfig) -> None:
    """Checks the options of every optimizer."""
    if common.lr is not None:
        POSITIVE.check("optimizer.lr", common.lr)
    for name in ("clip_norm", "error_feedback"):
        if (value := getattr(common, name)) is not None:
            POSITIVE.check(f"optimizer.{name}", value, "or null for none")
    if common.lr_by_delay is not None:
        check_whole("optimizer.lr_by_delay", common.lr_by_delay, least=1, otherwise="or null for full rates")
    if common.momentum_by_stage is not None:
        _check_pair("optimizer.momentum_by_stage", common.momentum_by_stage, _MOMENTUM)
    if not isinstance(common.groups, list | None):
        raise ConfigError(
            f"optimizer.groups={common.groups}: must be a list such as [{{max_dims: 1, weight_decay: 0}}]"
        )


def _check_options(section: str, options: Mapping[str, Any]) -> None:
    for name, value in options.items():
        setting = f"{section}.{name}"
        if name in _FLAGS:
            check_flag(setting, value)
        elif name in _RANGES and not (name == "eps" and isinstance(value, list)):  # Adafactor has two
            _RANGES[name].check(setting, value)
        elif name in _BETAS:
            _check_pair(setting, value, BELOW_ONE)


def _check_pair(setting: str, value: Any, accepted: NumberRange) -> None:
    if not isinstance(value, list) or len(value) != 2 or any(each not in accepted for each in value):
        raise ConfigError(f"{setting}={as_configured(value)}: must be a pair such as [0.9,0.99], each {accepted}")
