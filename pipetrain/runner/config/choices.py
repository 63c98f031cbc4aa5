"""Available choices, read from the configuration files and the code that they name."""

import re
from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from omegaconf import MISSING, OmegaConf

from pipetrain.engine.errors import ConfigError
from pipetrain.runner.config import plain_yaml
from pipetrain.runner.config.installed import installed_folders
from pipetrain.runner.config.schema import TARGET, config_dir

_BRINGS = re.compile(r"override /(\w+)")
_NAMED_BY_CLASS = ("schedule", "method", "lr_schedule")
"""Groups of which a class of the user's own is recorded under its own name."""
_REMARK = re.compile(r"# (task|family|paper|cost|small|minutes|rounds|metric|slowdown|small_loss): (.+)")


@dataclass(frozen=True)
class Choice:
    """A YAML file of a group.

    Attributes:
        summary: its first comment.
        remarks: further comments, such as `# paper: dataset=imagenet train.batch_size=256`, by their first word.
        package: the installed package that provides it; None for pipetrain's own and those in another folder.
    """

    name: str
    summary: str
    remarks: Mapping[str, str]
    content: dict[str, Any]
    package: str | None = None


def choices_of(group: str) -> Iterator[Choice]:
    """The files of a group, a user's own (`custom`) aside, sorted by name."""
    return (choice_of(group, name) for name in names_of(group))


def choice_of(group: str, name: str, folder: Path | None = None) -> Choice:
    """A file of a group: pipetrain's or an installed package's, or in another folder."""
    path = file_of(group, name, folder)
    text = path.read_text(encoding="utf-8")
    comments = (line.removeprefix("#").strip() for line in text.splitlines() if line.startswith("#"))
    summary = next((each for each in comments if each and not each.startswith("@")), "")
    package = next((owner for home, owner in installed_folders().items() if path.is_relative_to(home)), None)
    return Choice(name, summary, dict(_REMARK.findall(text)), _content(path), package)


def file_of(group: str, name: str, folder: Path | None = None) -> Path:
    """The file of a choice, which may not exist: pipetrain's or an installed package's, or in another folder."""
    paths = [home / group / f"{name}.yaml" for home in _homes(folder)]
    return next(filter(Path.is_file, paths), paths[0])


def _homes(folder: Path | None) -> list[Path]:
    return [config_dir(), *installed_folders()] if folder is None else [folder]


def choices_of_run(asked: Mapping[str, str], folder: Path | None = None) -> dict[str, str]:
    """Group -> choice of a run: as `asked` for, else from experiment, model and method, else the default.

    Args:
        asked: group -> choice on the command line.
        folder: where the experiment is, if not among pipetrain's or an installed package's.
    """
    defaults = _default_choices()
    given = {**group_overrides_of("experiment", asked.get("experiment", ""), folder), **asked}
    for group in ("model", "method"):
        defaults |= group_overrides_of(group, given.get(group, defaults[group]))
    return {**defaults, **{group: name for group, name in given.items() if group in defaults}}


def _default_choices() -> dict[str, str]:
    entries = [entry for entry in _content(config_dir() / "config.yaml")["defaults"] if isinstance(entry, dict)]
    named = ((str(group), name) for entry in entries for group, name in entry.items())
    return {group: str(name) for group, name in named if name is not None and "@" not in group}


def group_overrides_of(group: str, name: str, folder: Path | None = None) -> dict[str, str]:
    """Choices of other groups that a choice makes, by its overrides of the defaults list; `folder`: see `choice_of`."""
    if name not in names_of(group, folder):
        return {}
    entries = _content(file_of(group, name, folder)).get("defaults", [])
    found = [(_BRINGS.match(str(key)), choice) for entry in entries for key, choice in entry.items()]
    return {match[1]: str(choice) for match, choice in found if match}


def with_own_names(choices: Mapping[str, str], config: Mapping[str, Any]) -> dict[str, str]:
    """The choices, with the class of the user's own in place of the one whose file `config` started from."""
    names = dict(choices)
    for group in names.keys() & set(_NAMED_BY_CLASS):
        content, name = config.get(group), names[group]
        path = content.get(TARGET, MISSING) if isinstance(content, Mapping) else MISSING
        if name in names_of(group):
            is_own = section(group, name).get(TARGET, path) != path
        else:
            is_own = name == "custom"  # a file of the user's own has the name that the user gave it
        if is_own and path != MISSING:
            names[group] = str(path).rpartition(".")[2]
    return names


def tuned_file(model: str, choice: str) -> Path | None:
    """File with a model's changes to a data set, optimizer, learning-rate schedule or loss; None if it has none."""
    path = file_of("tuned", f"{model}-{choice}")
    return path if path.is_file() else None


def section_for(model: str, group: str, name: str) -> dict[str, Any]:
    """The settings of a choice in its own group, with what the model changes of them."""
    path = tuned_file(model, name)
    return {**section(group, name), **(_content(path) if path else {})}


def section_overrides_of(group: str, name: str) -> dict[str, dict[str, Any]]:
    """The settings of a choice in sections that are not groups, such as `train`."""
    content = _content(file_of(group, name))
    others = {key: value for key, value in content.items() if not (config_dir() / key).is_dir()}
    return {} if TARGET in content else {key: value for key, value in others.items() if isinstance(value, dict)}


def names_of(group: str, folder: Path | None = None) -> list[str]:
    """Names of the choices of a group, or of those in another folder, sorted, without `custom`."""
    return sorted((name for name in all_names(group, folder) if name != "custom"), key=_natural)


def all_names(group: str, folder: Path | None = None) -> set[str]:
    """The same with `custom`, and unsorted."""
    homes = [home / group for home in _homes(folder)]
    return {path.relative_to(home).with_suffix("").as_posix() for home in homes for path in home.rglob("*.yaml")}


def papers_folder() -> Path | None:
    """The folder with the presets of papers, which only a checkout has; None elsewhere."""
    folder = config_dir().parent / "papers" / "conf"
    return folder if folder.is_dir() else None


def check_own_folder(folder: Path) -> None:
    """Raises a ConfigError if the folder of `--config-dir` is missing, or one of its choices has the name of ours."""
    if not folder.is_dir():
        raise ConfigError(f"--config-dir {folder}: the folder does not exist")
    for own in sorted(config_dir().rglob("*/*.yaml")):
        name = own.relative_to(config_dir())
        if (theirs := folder / name).is_file() and theirs.read_bytes() != own.read_bytes():
            raise ConfigError(f"--config-dir {folder}: {name} has the name of one of pipetrain's choices; rename it")


def section(group: str, name: str) -> dict[str, Any]:
    """The settings of a choice in its own group; some files also have settings of other sections."""
    content = _content(file_of(group, name))
    own = content if TARGET in content else content.get(group, content)
    return {key: value for key, value in own.items() if key != "defaults"}


def _natural(name: str) -> list[tuple[bool, int, str]]:
    """Sort key that orders numbers in names by value: resnet20 before resnet110."""
    parts = re.findall(r"\d+|\D+", name)
    return [(not part.isdigit(), int(part) if part.isdigit() else 0, part) for part in parts]


def _content(path: Path) -> dict[str, Any]:
    return deepcopy(_parsed(path.read_text(encoding="utf-8")))


@cache
def _parsed(text: str) -> dict[str, Any]:
    """Contents of a YAML file; each composition asks for the same ones about ten times."""
    try:
        content = plain_yaml.load(text) or {}  # ten times as fast as OmegaConf's reader
    except ValueError:  # a user's file may have aliases
        content = OmegaConf.to_container(OmegaConf.create(text), resolve=False)
    assert isinstance(content, dict)
    return {str(key): value for key, value in content.items()}


def names_of_family(group: str, family: str) -> list[str]:
    """Names of the choices of a group whose classes are of this family."""
    targets = ((choice.name, choice.content.get(TARGET)) for choice in choices_of(group))  # presets of phases have none
    return [name for name, target in targets if target and _family_of(target) == family]


def _family_of(target: str) -> str | None:
    module, _, name = target.rpartition(".")
    try:
        family: str = getattr(import_module(module), name).family
    except Exception:  # the code of an installed package may not work
        return None
    return family
