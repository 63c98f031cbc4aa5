"""What there is to choose from, read off the configuration files and the code they name."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra.utils import get_object
from omegaconf import OmegaConf

from pipetrain.config.schema import config_dir


@dataclass(frozen=True)
class Choice:
    """One YAML file of a group: its name on the command line, its first comment, its content."""

    name: str
    summary: str
    content: dict[str, Any]


def choices_of(group: str) -> Iterator[Choice]:
    """The files of a group, a user's own (`custom`) aside, sorted by name."""
    for name in names_of(group):
        path = config_dir() / group / f"{name}.yaml"
        yield Choice(name, _summary(path), _content(path))


def choices_of_run(asked: Mapping[str, str]) -> dict[str, str]:
    """What a run chooses of each group: what is asked for, the defaults, and the schedule that the method brings."""
    entries = [entry for entry in _content(config_dir() / "config.yaml")["defaults"] if isinstance(entry, dict)]
    defaults = {str(group): str(name) for entry in entries for group, name in entry.items() if name is not None}
    method = asked.get("method", defaults["method"])
    brought = {"schedule": default_schedule(method)} if method in names_of("method") else {}
    return {**defaults, **brought, **{group: name for group, name in asked.items() if group in defaults}}


def names_of(group: str) -> list[str]:
    """What the choices of a group are called, sorted by name; a user's own aside."""
    folder = config_dir() / group
    names = (path.relative_to(folder).with_suffix("").as_posix() for path in folder.rglob("*.yaml"))
    return sorted((name for name in names if name != "custom"), key=_natural)


def section(group: str, name: str) -> dict[str, Any]:
    """The settings of a choice, its defaults list aside."""
    content = _content(config_dir() / group / f"{name}.yaml")
    return {key: value for key, value in content.items() if key != "defaults"}


def default_schedule(method: str) -> str:
    """The schedule that a method brings."""
    (line,) = _content(config_dir() / "method" / f"{method}.yaml")["defaults"]
    (name,) = line.values()
    return str(name)


def _natural(name: str) -> list[tuple[bool, int, str]]:
    """resnet20 before resnet110."""
    parts = re.findall(r"\d+|\D+", name)
    return [(not part.isdigit(), int(part) if part.isdigit() else 0, part) for part in parts]


def _summary(path: Path) -> str:
    comments = (line.removeprefix("#").strip() for line in path.read_text().splitlines() if line.startswith("#"))
    return next((text for text in comments if text and not text.startswith("@")), "")


def _content(path: Path) -> dict[str, Any]:
    content = OmegaConf.to_container(OmegaConf.load(path), resolve=False)
    assert isinstance(content, dict)
    return {str(key): value for key, value in content.items()}


def names_of_family(group: str, family: str) -> list[str]:
    """What the choices of a group whose classes are of this family are called."""
    targets = {
        choice.name: choice.content.get("_target_") for choice in choices_of(group)
    }  # a preset of phases has none
    return [name for name, target in targets.items() if target and get_object(target).family == family]
