"""Choices of installed packages: folders of YAML files that entry points of `pipetrain.choices` name."""

import sys
from collections.abc import Mapping
from functools import cache
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path

from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.plugins import Plugins
from hydra.plugins.search_path_plugin import SearchPathPlugin
from typing_extensions import override

from pipetrain.data.files.regular_file import text_of
from pipetrain.engine import outer_launcher
from pipetrain.engine.errors import ConfigError, one_line
from pipetrain.runner.config import plain_yaml
from pipetrain.runner.config.schema import config_dir, register_schema

ENTRY_POINTS = "pipetrain.choices"
"""Group of entry points; the value of each is the dotted path of a folder, such as `mylib.conf`."""


@cache
def installed_folders() -> Mapping[Path, str]:
    """Folder of choices -> the installed package that brings it.

    A package whose folder cannot be used is skipped with a warning, so that the rest work.
    """
    folders: dict[Path, str] = {}
    found = {(entry.dist.name if entry.dist else entry.name, entry.value) for entry in entry_points(group=ENTRY_POINTS)}
    for package, value in sorted(found):
        try:
            folder = _folder_of(value)
            _check(folder, folders)
        except Exception as error:  # a third-party package may fail in any way
            if outer_launcher.leads():
                print(f"pipetrain: warning: the choices of {package} are not used: {one_line(error)}", file=sys.stderr)
        else:
            folders[folder] = package
    return folders


def _folder_of(path: str) -> Path:
    """The folder of a dotted path, found without an import of the package, which may be slow or fail."""
    name, *inside = path.split(".")
    spec = find_spec(name)
    for place in (spec.submodule_search_locations if spec else None) or ():
        if (folder := Path(place, *inside).resolve()).is_dir():
            return folder
    raise ConfigError(f"its entry point names {path}, which is not a folder of an installed package")


def _check(folder: Path, others: Mapping[Path, str]) -> None:
    """Checks every file of a package; `others` are the folders of the packages before it.

    Raises:
        ConfigError: a file is of no group, has no settings, or has the name of another one.
        Exception: it cannot be read.
    """
    owners = {config_dir(): "pipetrain", **others}
    for path in sorted(folder.rglob("*.yaml")):
        name = path.relative_to(folder)
        if owner := next((owner for home, owner in owners.items() if (home / name).is_file()), None):
            raise ConfigError(f"{name} is in {owner} already; rename the file in {folder}")
        if not (config_dir() / name.parts[0]).is_dir():
            raise ConfigError(f"{path}: there is no group {name.parts[0]}")
        if not isinstance(plain_yaml.load(text_of(path)), dict):
            raise ConfigError(f"{path}: has no settings")


class InstalledChoices(SearchPathPlugin):
    """Has Hydra look for choices in the folders of installed packages, after pipetrain's own."""

    @override
    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        for folder, package in installed_folders().items():
            search_path.append(package, f"file://{folder}")


def register_configuration() -> None:
    """Makes the schema and the choices of installed packages known to Hydra."""
    register_schema()
    Plugins.instance().register(InstalledChoices)
