"""`pipetrain run --help`: the choices of every group, and every setting with its default and its meaning."""

import re
import shutil
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from pipetrain.engine.errors import as_configured
from pipetrain.runner.config.choices import choices_of_run, names_of
from pipetrain.runner.config.reference import (
    Setting,
    groups,
    sections,
    settings_beside,
    settings_of_choice,
    settings_of_preset,
)
from pipetrain.runner.config.schema import config_dir

_COLUMN = 34
_CHOICE = re.compile(r"(\w+)=([\w/]+)")


def settings_help(words: Sequence[str], folder: Path | None = None) -> Iterator[str]:
    """The lines of the help.

    Args:
        words: of the command line; the settings of their choices are shown.
        folder: the user's own configuration files, in addition to pipetrain's.
    """
    asked = {match[1]: match[2] for word in words if (match := _CHOICE.fullmatch(word))}
    preset = asked.get("experiment", "")
    home = None if folder is None or preset in names_of("experiment") else folder
    chosen = choices_of_run(asked, home)
    yield "GROUP=CHOICE chooses one of each group; `pipetrain list` describes them:"
    for group, meaning in groups().items():
        default = f" Here: {chosen[group]}." if group in chosen else ""
        yield f"  {group:{_COLUMN - 2}}{meaning}{default}"
        yield from _wrapped(", ".join(_names(group, folder)))
    yield from ("", "NAME=VALUE changes a setting; these are all, with their defaults:")
    for section in sections():
        yield from ("", f"  {section.meaning}", *_settings(section.settings))
    yield from ("", "Settings of the choices made:")
    for group, name in chosen.items():
        if name in names_of(group):
            settings = [*settings_of_choice(group, name, chosen["model"]), *settings_beside(group, name)]
            yield from ("", f"  {group}={name}", *_settings(settings)) if settings else ()
    if preset in names_of("experiment", home):
        yield from ("", f"  experiment={preset}, in place of those above", *_settings(settings_of_preset(preset, home)))


def _names(group: str, folder: Path | None) -> list[str]:
    """Names of a group: pipetrain's in the order of `pipetrain list`, the user's, and the size of each folder."""
    given, own = names_of(group), [] if folder is None else names_of(group, folder)
    custom = ["custom"] if (config_dir() / group / "custom.yaml").is_file() else []
    inside = Counter(name.split("/")[0] for name in (*given, *own) if "/" in name)
    return [
        *(name for name in given if "/" not in name),
        *custom,
        *(name for name in own if "/" not in name),
        *(f"{name}/... ({count})" for name, count in inside.items()),
    ]


def _settings(settings: Iterable[Setting]) -> Iterator[str]:
    for setting in settings:
        name = f"    {setting.name}={as_configured(setting.default)}"
        lines = _wrapped(setting.meaning)
        if len(name) < _COLUMN and lines:
            yield name.ljust(_COLUMN) + lines[0].lstrip()
            yield from lines[1:]
        else:
            yield from (name, *lines)


def _wrapped(text: str) -> list[str]:
    width = min(120, shutil.get_terminal_size((100, 24)).columns)
    indent = " " * _COLUMN
    return textwrap.wrap(text, width, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False)
