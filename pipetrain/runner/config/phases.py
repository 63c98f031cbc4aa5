"""The phases of a run as the configuration gives them: names turned into sections, and when each ends."""

import re
from collections.abc import Collection, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from omegaconf import DictConfig, OmegaConf

from pipetrain.engine.errors import ConfigError, as_configured, check_whole
from pipetrain.runner.config.choices import choices_of, names_of, section
from pipetrain.runner.config.instantiate import Target, naming
from pipetrain.runner.config.schema import TARGET
from pipetrain.runner.config.suggestions import did_you_mean, unknown_choice

_PARTS = ("schedule", "method")
_ENDS = ("steps", "epochs")


@dataclass(frozen=True)
class PhaseSettings:
    """A phase of a run.

    Attributes:
        choices: {"schedule": ..., "method": ...}, as they are called on the command line.
        steps, epochs: how long it lasts, one of them; both None: to the end of the run.
        number: its place in `phases`; None: the configuration has none, and this is the whole run.
    """

    schedule: Target
    method: Target
    choices: Mapping[str, str]
    steps: int | None = None
    epochs: int | None = None
    number: int | None = None

    def length(self, steps_per_epoch: int) -> int | None:
        """Steps that it lasts; None: to the end of the run."""
        return self.steps if self.epochs is None else self.epochs * steps_per_epoch


def naming_phase(number: int | None) -> AbstractContextManager[None]:
    """Puts the number of a phase before errors, if the configuration has phases."""
    return nullcontext() if number is None else naming(f"phases[{number}]")


def phases_of(config: Mapping[str, Any], choices: Mapping[str, str]) -> tuple[PhaseSettings, ...]:
    """The phases of a configuration in which `phases` is written out; one if it has none."""
    if config["phases"] is None:
        names = {part: _name(config, choices, part) for part in _PARTS}
        schedule, method = (Target.of(part, config[part]) for part in _PARTS)
        return (PhaseSettings(schedule, method, names),)
    phases = []
    for number, entry in enumerate(config["phases"]):
        with naming_phase(number):
            schedule, method = (Target.of(part, entry[part]) for part in _PARTS)
        phases.append(PhaseSettings(schedule, method, entry["names"], entry["steps"], entry["epochs"], number))
    return tuple(phases)


def _name(config: Mapping[str, Any], choices: Mapping[str, str], part: str) -> str:
    """Name of the run's schedule or method; its path if it was not chosen by name."""
    return str(choices.get(part) or config[part].get(TARGET))


def check_read(config: DictConfig, choices: Mapping[str, str]) -> None:
    """Raises a ConfigError for a setting of a schedule or method that no phase, as a user writes them, reads."""
    plain: dict[str, Any] = OmegaConf.to_container(config)  # type: ignore[assignment]
    entries = plain["phases"]
    if not isinstance(entries, list) or any("names" in entry for entry in entries if isinstance(entry, dict)):
        return  # no phases, or they are written out and refer to nothing
    read = dict.fromkeys(re.findall(r"\$\{([\w.]+)\}", str(entries)))
    for part in _PARTS:
        works = [each for each in read if each.startswith(f"{part}.")]
        for key, value in _to_be_read(part, plain, read, choices.get(part)).items():
            if (setting := f"{part}.{key}") not in read:
                otherwise = f"; set it inside a phase, such as {{{part}: {{name: ..., {key}: ...}}}}"
                if works and TARGET not in plain[part]:  # of a preset
                    otherwise = f"; choose from {', '.join(works)}"
                hint = did_you_mean(setting, works) or otherwise
                raise ConfigError(f"{setting}={as_configured(value)}: no phase reads it{hint}")


def _to_be_read(part: str, plain: Mapping[str, Any], read: Collection[str], name: str | None) -> Mapping[str, Any]:
    """The settings of a section that phases must read: all of a preset, and changed ones of a choice not used."""
    given: Mapping[str, Any] = plain[part]
    if TARGET not in given:
        return given
    is_used = part in read or any(not isinstance(entry, dict) or entry.get(part) is None for entry in plain["phases"])
    default = {} if is_used or name not in names_of(part) else section(part, name)
    return {key: value for key, value in given.items() if key in default and value != default[key]}


def expand_phases(config: Mapping[str, Any], choices: Mapping[str, str]) -> list[dict[str, Any]] | None:
    """`phases` with every schedule and method written out, independent of the files that they come from.

    An entry is {schedule, method, steps or epochs}. A schedule or method is a name of its group, a mapping of a `name`
    and settings to change, or a section with a `_target_` of the user's own; left out, it is the run's.

    Raises:
        ConfigError: an entry is of another form, or never ends although another follows.
    """
    entries = config["phases"]
    if entries is None:
        return None
    if not isinstance(entries, list) or not entries:
        raise ConfigError(f"phases={entries}: must be a list such as [{{method: gpipe, epochs: 2}}, {{}}]")
    phases = [_entry(config, choices, f"phases[{number}]", entry) for number, entry in enumerate(entries)]
    for number, phase in enumerate(phases[:-1]):
        if all(phase[end] is None for end in _ENDS):
            raise ConfigError(f"phases[{number}]: needs steps or epochs, as phases[{number + 1}] follows")
    return phases


def _entry(config: Mapping[str, Any], choices: Mapping[str, str], where: str, entry: Any) -> dict[str, Any]:
    if not isinstance(entry, dict) or (unknown := entry.keys() - {*_PARTS, *_ENDS, "names"}):
        meant = did_you_mean(str(min(unknown)), (*_PARTS, *_ENDS)) if isinstance(entry, dict) else ""
        raise ConfigError(f"{where}={entry}: must be a mapping of schedule, method, and steps or epochs{meant}")
    ends = _ends(where, entry)
    sections, names = {}, {}
    for part in _PARTS:
        names[part], sections[part] = _section(config, choices, f"{where}.{part}", entry.get(part))
    return {**sections, **ends, "names": entry.get("names") or names}


def _ends(where: str, entry: Mapping[str, Any]) -> dict[str, int | None]:
    ends = {end: entry.get(end) for end in _ENDS}
    for end, value in ends.items():
        if value is not None:
            check_whole(f"{where}.{end}", value, least=1)
    if None not in ends.values():
        raise ConfigError(f"{where}: set either steps={ends['steps']} or epochs={ends['epochs']}, not both")
    return ends


def _section(
    config: Mapping[str, Any], choices: Mapping[str, str], where: str, choice: Any
) -> tuple[str, dict[str, Any]]:
    """Name and section of a schedule or method."""
    part = where.rsplit(".", 1)[1]
    if choice is None:
        return _name(config, choices, part), dict(config[part])
    if isinstance(choice, str):
        choice = {"name": choice}
    if not isinstance(choice, dict) or not {"name", TARGET} & choice.keys():
        raise ConfigError(f"{where}={choice}: must be a name, or a mapping with `name` and settings to change")
    if TARGET in choice:
        return str(choice[TARGET]).rpartition(".")[2], choice
    names = [each.name for each in choices_of(part) if TARGET in each.content]
    if choice["name"] not in names:
        raise ConfigError(f"{where}={choice['name']}: {unknown_choice(part, str(choice['name']), names)}")
    changes = {key: value for key, value in choice.items() if key != "name"}
    # a section may refer to settings of the run, such as ${seed}
    whole = OmegaConf.create({**config, "phases": None, "_section": {**section(part, choice["name"]), **changes}})
    return str(choice["name"]), OmegaConf.to_container(whole._section, resolve=True)  # type: ignore[return-value]
