"""Differences between the settings of a resumed run and of its checkpoint, and which of them are allowed."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from omegaconf import OmegaConf
from typing_extensions import override

from pipetrain.data.files import strict_json
from pipetrain.engine.errors import as_configured
from pipetrain.runner.config.schema import TARGET, leaves, schema
from pipetrain.runner.config.settings import Settings

_PLACE = "its position in the data would change"
_FIXED = {
    "model": "the weights belong to another model",
    "model.weights": "the checkpoint has the weights to continue from",
    "model.untie": "one shared weight and two separate weights have different state",
    "optimizer": "the state belongs to another optimizer",
    "dataset": _PLACE,
    "dataset.limit": _PLACE,
    "dataset.shuffle": _PLACE,
    "train.batch_size": _PLACE,
    "seed": "order, augmentation and dropout would change",
}
"""Settings that every continuation of a run keeps, and why."""

_OF_NO_EFFECT = (
    "resume", "debug", "log", "launch", "checkpoint", "eval", "executor", "sweep", "trace", "metrics", "callbacks",
    "messages.evaluation", "messages.error_every", "model.strict",
    "dataset.workers", "dataset.prefetch", "dataset.pin_memory",
    "planner.repeats", "planner.bandwidth",
)  # fmt: skip
"""Settings, or sections of them, that change no weight."""

_DRAINS = "checkpoint.every_steps"
"""A setting of those sections that does: under an asynchronous schedule, minibatches after it read newer weights."""

_IGNORED = ("resume", "debug")

_OF_LENGTH = ("train.epochs", "train.max_steps", "train.target", "train.patience", "train.min_improvement")


@dataclass(frozen=True)
class Difference:
    """A setting whose value has changed.

    Attributes:
        setting: its name on the command line; a group's name if another of its choices was made.
        old, new: its values, or the names of the choices.
    """

    setting: str
    old: Any
    new: Any

    @override
    def __str__(self) -> str:
        if any(isinstance(value, list) and value and isinstance(value[0], Mapping) for value in (self.old, self.new)):
            return f"other {self.setting}"
        return f"{self.setting} {as_configured(self.old)} -> {as_configured(self.new)}"

    @property
    def is_place(self) -> bool:
        """True if both values are paths: the same files may be at different places."""
        is_target = TARGET in self.setting.split(".")
        return not is_target and all(isinstance(value, str) and os.sep in value for value in (self.old, self.new))

    @property
    def changes_data(self) -> bool:
        """True if the samples may differ from those before."""
        return _is_of(self.setting, ("dataset",)) and self.changes_weights and not self.is_place

    @property
    def why_fixed(self) -> str | None:
        """Why no run with this value can continue from a checkpoint; None if one can."""
        return _FIXED.get(self.setting)

    @property
    def changes_weights(self) -> bool:
        """True if the steps that are done would have had other results."""
        return not _has_no_effect(self.setting) and not _is_of(self.setting, _OF_LENGTH)


def changes_since(before: Mapping[str, Any], settings: Settings) -> list[Difference]:
    """Settings of a run that differ from those `before`, of a checkpoint: its `settings` and `choices`."""
    now = strict_json.loads(strict_json.dumps(settings.stored))  # as it would be read back
    return differences(before["settings"], now, (before["choices"], settings.choices))


def differences(old: Mapping[str, Any], new: Mapping[str, Any], names: Sequence[Mapping[str, str]]) -> list[Difference]:
    """Differences between configurations as `config.yaml` holds them; a setting that one lacks has its default.

    `names` are the choices of each group, in both.
    """
    before, after = _settings(old), _settings(new)
    changed = {
        setting: Difference(setting, before.get(setting), after.get(setting))
        for setting in sorted(before.keys() | after.keys())
        if before.get(setting) != after.get(setting) and not _is_of(setting, _IGNORED)
    }
    choices: dict[str, Difference] = {}
    for setting, difference in changed.items():
        if setting.endswith(f".{TARGET}"):  # another choice, shown by name if the names differ
            group = setting.partition(".")[0]
            chosen = tuple(each.get(group) for each in names)
            if None in chosen or chosen[0] == chosen[1]:
                chosen = difference.old, difference.new
            choices[group] = Difference(group, *chosen)
    return [*choices.values(), *(each for name, each in changed.items() if name.partition(".")[0] not in choices)]


def identity_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that two runs must have in common for either to continue the other."""
    return {name: value for name, value in _settings(config).items() if not _has_no_effect(name)}


def _settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """Name -> value of every setting."""
    defaults: Any = OmegaConf.to_container(schema())
    return {**dict(leaves(defaults)), **dict(leaves(config))}


def _has_no_effect(setting: str) -> bool:
    return setting != _DRAINS and _is_of(setting, _OF_NO_EFFECT)


def _is_of(setting: str, sections: Sequence[str]) -> bool:
    return any(setting == section or setting.startswith(f"{section}.") for section in sections)
