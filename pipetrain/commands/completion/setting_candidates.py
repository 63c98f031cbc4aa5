"""Settings and choices that a word may become: those that Hydra finds, and the values that we know."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.plugins.completion_plugin import DefaultCompletionPlugin

from pipetrain.config.checks import CHOICES
from pipetrain.config.choices import all_names
from pipetrain.config.reference import groups, sections
from pipetrain.config.schema import config_dir, register_schema


def settings(before: Sequence[str], word: str, folder: Path | None = None) -> list[str]:
    """The settings and choices that begin with `word`, under the settings `before` it.

    Args:
        before: what stands before it.
        word: as far as it is typed.
        folder: with choices of the user's own.
    """
    known = {setting.name: setting.default for section in sections() for setting in section.settings}
    name, equals, value = word.partition("=")
    if equals and (values := _values(name, known)):
        return [f"{name}={each}" for each in values if each.startswith(value)]
    # of a sweep such as method=gpipe,pip the last member is completed
    *members, last = value.split(",")
    if equals and name in groups():
        found = [f"{name}={each}" for each in choices(name, last, folder)]
    else:
        found = _of_hydra([*before, f"{name}{equals}{last}"])
    if members:
        return [f"{name}={','.join([*members, each.partition('=')[2]])}" for each in found]
    return [_spelled(each, known) for each in found if not each.startswith("tuned")]  # no group to choose of


def choices(group: str, start: str, folder: Path | None = None) -> list[str]:
    """The choices of a group that begin with `start`, of those in a folder of the group only the folder."""
    names = all_names(group) | (all_names(group, folder) if folder is not None else set())
    rests = (name.removeprefix(start).partition("/") for name in names if name.startswith(start))
    return sorted({f"{start}{head}{slash}" for head, slash, _ in rests})


def _of_hydra(words: Sequence[str]) -> list[str]:
    register_schema()
    with initialize_config_dir(str(config_dir()), version_base="1.3"):
        return _Completion(GlobalHydra.instance().config_loader()).of_line(words)


def _values(name: str, known: Mapping[str, Any]) -> Sequence[str]:
    """Values of switches, and of settings that are one of a few words."""
    return CHOICES.get(name) or (("true", "false") if isinstance(known.get(name), bool) else ())


def _spelled(found: str, known: Mapping[str, Any]) -> str:
    """A candidate as shown: Hydra takes a list that is null for a section, and leaves folders bare."""
    if found.removesuffix(".") in known:
        return found.removesuffix(".") + "="
    return found if set("=./") & set(found) else f"{found}/"


class _Completion(DefaultCompletionPlugin):
    def of_line(self, words: Sequence[str]) -> list[str]:
        """Candidates of Hydra's own completion for a line of settings."""
        return self._query(config_name="config", line=" ".join(words))
