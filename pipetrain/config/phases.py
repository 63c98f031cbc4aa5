"""The phases of a run as the configuration gives them: names turned into sections, and when each ends."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from omegaconf import OmegaConf

from pipetrain.config.choices import choices, section
from pipetrain.errors import ConfigError

_PARTS = ("schedule", "method")
_ENDS = ("steps", "epochs")


@dataclass(frozen=True)
class PhaseSettings:
    """One phase.

    Attributes:
        schedule, method: sections with a Hydra target.
        names: {"schedule": ..., "method": ...}, as they are called on the command line.
        steps: how long it lasts; None: to the end of the run.
    """

    schedule: dict[str, Any]
    method: dict[str, Any]
    names: dict[str, str]
    steps: int | None


def resolved(config: Mapping[str, Any], names: Mapping[str, str]) -> list[dict[str, Any]] | None:
    """`phases` with every schedule and method written out, so that no process needs the files they come from.

    An entry is {schedule, method, steps or epochs}. A schedule or method is a name of its group, a mapping of a `name`
    and settings to change, or a section with a `_target_` of the user's own; left out, it is the run's.

    Raises:
        ConfigError: an entry is of another form, or ends never although another follows.
    """
    entries = config.get("phases")
    if entries is None:
        return None
    if not isinstance(entries, list) or not entries:
        raise ConfigError(f"phases={entries}: a list such as [{{schedule: gpipe, method: gpipe, epochs: 2}}, {{}}]")
    found = [_resolved(config, names, number, entry) for number, entry in enumerate(entries)]
    for number, phase in enumerate(found[:-1]):
        if all(phase[end] is None for end in _ENDS):
            raise ConfigError(f"phases[{number}] never ends, and phases[{number + 1}] follows; give it steps or epochs")
    return found


def _resolved(config: Mapping[str, Any], names: Mapping[str, str], number: int, entry: Any) -> dict[str, Any]:
    where = f"phases[{number}]"
    if not isinstance(entry, dict) or (unknown := entry.keys() - {*_PARTS, *_ENDS, "names"}):
        wrong = f" {min(unknown)}" if isinstance(entry, dict) else ""
        raise ConfigError(f"{where}={entry}: takes schedule, method, and steps or epochs; not{wrong or ' this'}")
    ends = {end: entry.get(end) for end in _ENDS}
    for end, value in ends.items():
        if value is not None and (not isinstance(value, int) or value < 1):
            raise ConfigError(f"{where}.{end}={value}: a whole number of at least 1")
    if all(value is not None for value in ends.values()):
        raise ConfigError(f"{where} has both steps={ends['steps']} and epochs={ends['epochs']}; give one")
    sections, called = {}, {}
    for part in _PARTS:
        called[part], sections[part] = _section(config, names, part, entry.get(part), where)
    return {**sections, **ends, "names": entry.get("names") or called}


def _section(
    config: Mapping[str, Any], names: Mapping[str, str], part: str, choice: Any, where: str
) -> tuple[str, dict[str, Any]]:
    if choice is None:
        return names[part], dict(config[part])
    if isinstance(choice, str):
        choice = {"name": choice}
    if isinstance(choice, dict) and "_target_" in choice:
        return str(choice["_target_"]), choice
    if not isinstance(choice, dict) or "name" not in choice:
        raise ConfigError(f"{where}.{part}={choice}: a name, or a mapping with `name` and settings to change")
    known = [each.name for each in choices(part) if "_target_" in each.content]
    if choice["name"] not in known:
        raise ConfigError(f"{where}.{part}={choice['name']}: no such {part}; there are {', '.join(known)}")
    changes = {key: value for key, value in choice.items() if key != "name"}
    # a section may refer to settings of the run, such as ${seed}
    whole = OmegaConf.create({**config, "phases": None, "_section": {**section(part, choice["name"]), **changes}})
    return str(choice["name"]), OmegaConf.to_container(whole._section, resolve=True)  # type: ignore[return-value]


@contextmanager
def naming(config: Mapping[str, Any], number: int) -> Iterator[None]:
    """Puts the phase's number before what is wrong with it, where the configuration has phases."""
    try:
        yield
    except ConfigError as error:
        if config["phases"] is None:
            raise
        raise ConfigError(f"phases[{number}]: {error}") from error


def settings(config: Mapping[str, Any], names: Mapping[str, str], steps_per_epoch: int) -> Iterator[PhaseSettings]:
    """The phases of a configuration whose `phases` are resolved; the run as one phase where there are none."""
    if config["phases"] is None:
        yield PhaseSettings(config["schedule"], config["method"], {part: names[part] for part in _PARTS}, None)
        return
    for entry in config["phases"]:
        steps = entry["steps"] if entry["epochs"] is None else entry["epochs"] * steps_per_epoch
        yield PhaseSettings(entry["schedule"], entry["method"], entry["names"], steps)


def length(phases: list[PhaseSettings]) -> int | None:
    """Steps of all phases; None where the last has no end of its own."""
    ends = [phase.steps for phase in phases]
    return None if ends[-1] is None else sum(steps or 0 for steps in ends)
