"""Differences between the settings of a resumed run and of its checkpoint, and which of them are allowed."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from typing_extensions import override

from pipetrain.engine.errors import as_configured
from pipetrain.engine.files import strict_json
from pipetrain.engine.schedules.base import Family
from pipetrain.runner.config.choices import choice_of, names_of_family
from pipetrain.runner.config.schema import TARGET, leaves, schema
from pipetrain.runner.config.settings import Settings
from pipetrain.runner.training.checkpoint import store

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
    "model.strict", "dataset.workers", "dataset.prefetch", "dataset.pin_memory",
    "planner.repeats", "planner.bandwidth",
)  # fmt: skip
"""Settings, or sections of them, that change no weight."""

_DRAINS = ("checkpoint.every_steps",)
"""Settings of those sections that do under an asynchronous schedule: minibatches after a drain read newer weights."""

_IGNORED = ("resume", "debug")

_OF_LENGTH = ("train.epochs", "train.max_steps", "train.target", "train.patience", "train.min_improvement")


@dataclass(frozen=True)
class Difference:
    """A setting whose value has changed.

    Attributes:
        setting: its name on the command line; a group's name if another of its choices was made.
        old, new: its values, or the names of the choices.
        synchronous: True if all schedules of both runs are.
    """

    setting: str
    old: Any
    new: Any
    synchronous: bool = False

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
        """True if samples may be others than before."""
        return _is_of(self.setting, ("dataset",)) and self.changes_weights and not self.is_place

    @property
    def why_fixed(self) -> str | None:
        """Why no run with this value can continue from a checkpoint; None if one can."""
        return _FIXED.get(self.setting)

    @property
    def changes_weights(self) -> bool:
        """True if the steps that are done would have had other results."""
        return not _has_no_effect(self.setting, synchronous=self.synchronous) and not _is_of(self.setting, _OF_LENGTH)


def changes_since(folder: Path, settings: Settings) -> list[Difference]:
    """Settings of a run that differ from those of the checkpoint in `folder`."""
    before = store.load_config(folder)
    now = strict_json.loads(strict_json.dumps(settings.stored))  # as it would be read back
    return differences(before["settings"], now, (before["choices"], settings.choices))


def differences(old: Mapping[str, Any], new: Mapping[str, Any], names: Sequence[Mapping[str, str]]) -> list[Difference]:
    """Differences between two configurations; a setting that one of them lacks has its default.

    Args:
        old: as `config.yaml` holds it.
        new: likewise.
        names: the choices of each group, in both.
    """
    before, after = _settings(old), _settings(new)
    synchronous = _is_synchronous(old) and _is_synchronous(new)
    changed = {
        setting: Difference(setting, before.get(setting), after.get(setting), synchronous)
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
            choices[group] = Difference(group, chosen[0], chosen[1], synchronous)
    return [*choices.values(), *(each for name, each in changed.items() if name.partition(".")[0] not in choices)]


def identity_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that two runs must have in common for either to continue the other."""
    synchronous = _is_synchronous(config)
    return {
        name: value for name, value in _settings(config).items() if not _has_no_effect(name, synchronous=synchronous)
    }


def _settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """Name -> value of every setting."""
    defaults: Any = OmegaConf.to_container(schema())
    return {**dict(leaves(defaults)), **dict(leaves(config))}


def _has_no_effect(setting: str, *, synchronous: bool) -> bool:
    return _is_of(setting, _OF_NO_EFFECT) and (synchronous or setting not in _DRAINS)


def _is_synchronous(config: Mapping[str, Any]) -> bool:
    """True if all schedules are pipetrain's own synchronous ones, without replicas, whose rounds a drain cuts short."""
    replicas = _setting(config, "partition", "replicas")
    if replicas is not None and not (isinstance(replicas, list) and all(each == 1 for each in replicas)):
        return False
    if _setting(config, "partition", "replicated") or _setting(config, "partition", "path"):
        return False  # a plan may have replicas
    phases = config.get("phases")
    every = [config, *(phases if isinstance(phases, list) else [])]
    return all(_setting(each, "schedule", TARGET) in _synchronous_targets() for each in every)


def _setting(config: Any, section: str, name: str) -> Any:
    """A setting of a configuration, which may be another program's; None if it has none."""
    found = config.get(section) if isinstance(config, Mapping) else None
    return found.get(name) if isinstance(found, Mapping) else None


@cache
def _synchronous_targets() -> frozenset[str]:
    names = names_of_family("schedule", Family.SYNCHRONOUS)
    own = (choice for choice in map(partial(choice_of, "schedule"), names) if choice.package is None)
    return frozenset(str(choice.content[TARGET]) for choice in own)


def _is_of(setting: str, sections: Sequence[str]) -> bool:
    return any(setting == section or setting.startswith(f"{section}.") for section in sections)
