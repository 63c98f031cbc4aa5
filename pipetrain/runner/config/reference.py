"""Every setting of a run with its default and its meaning, read off the schema and the files of the choices."""

import ast
import inspect
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any

from pipetrain.runner.config import schema
from pipetrain.runner.config.choices import choice_of, file_of, section_for, section_overrides_of, tuned_file
from pipetrain.runner.config.schema import OPEN_SECTIONS, TARGET, Config, config_dir, leaves

_COMMENTED = re.compile(r"^ *(?P<key>\w+):.*?(?: +# (?P<comment>.*))?$")


@dataclass(frozen=True)
class Setting:
    """A setting under its name on the command line."""

    name: str
    default: Any
    meaning: str


@dataclass(frozen=True)
class Section:
    """Settings with a common prefix; settings of the run as a whole have none."""

    name: str
    meaning: str
    settings: tuple[Setting, ...]


def groups() -> dict[str, str]:
    """Group -> meaning; groups are the folders of the configuration."""
    meanings = _meanings()[Config.__name__]
    known = {field.name: meanings[field.name] for field in fields(Config) if (config_dir() / field.name).is_dir()}
    return {**known, "experiment": "A preset for any of these."}


def sections() -> tuple[Section, ...]:
    """The settings that every run has, by section."""
    kinds = {name: OPEN_SECTIONS.get(name, type(value)) for name, value in vars(Config()).items()}
    del kinds["executor"]  # a choice without settings
    named = {name: kind for name, kind in kinds.items() if is_dataclass(kind)}
    run = tuple(each for each in _settings(Config) if each.name not in {*named, *groups()})
    found = (Section(name, _meanings()[kind.__name__][""], _settings(kind, f"{name}.")) for name, kind in named.items())
    return (Section("", "The run as a whole.", run), *found)


def _settings(kind: type, prefix: str = "") -> tuple[Setting, ...]:
    meanings = _meanings()[kind.__name__]
    return tuple(Setting(f"{prefix}{name}", _named(default), meanings[name]) for name, default in vars(kind()).items())


def _named(default: Any) -> Any:
    """The name of a choice that has options of its own, as it is written on the command line."""
    return default["name"] if isinstance(default, dict) and [*default] == ["name"] else default


@cache
def _meanings() -> Mapping[str, Mapping[str, str]]:
    """Class of the schema -> its fields -> the docstring below each; "" is the class itself."""
    tree = ast.parse(inspect.getsource(schema))
    return {node.name: dict(_docstrings(node)) for node in tree.body if isinstance(node, ast.ClassDef)}


def _docstrings(node: ast.ClassDef) -> Iterator[tuple[str, str]]:
    yield "", ast.get_docstring(node) or ""
    for before, after in zip(node.body, node.body[1:], strict=False):
        if isinstance(before, ast.AnnAssign) and isinstance(before.target, ast.Name):
            text = after.value.value if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) else ""
            yield before.target.id, " ".join(str(text).split())


def settings_of_choice(group: str, name: str, model: str = "") -> Iterator[Setting]:
    """The settings of a choice as the model changes them, without its target, each with the comment of its line."""
    changed = tuned_file(model, name)
    comments = {**_comments(file_of(group, name)), **(_comments(changed) if changed else {})}
    for key, default in section_for(model, group, name).items():
        if key != TARGET:
            yield Setting(f"{group}.{key}", default, comments.get(key, ""))


def settings_beside(group: str, name: str) -> Iterator[Setting]:
    """The settings of every run that a choice changes, such as `train.batch_size`."""
    comments = _comments(file_of(group, name))
    for section, values in section_overrides_of(group, name).items():
        for key, value in values.items():
            yield Setting(f"{section}.{key}", value, comments.get(key, ""))


def settings_of_preset(name: str, folder: Path | None = None) -> Iterator[Setting]:
    """The settings that an experiment changes, each with the comment of its line; `folder`: see `choice_of`."""
    comments = _comments(file_of("experiment", name, folder))
    content = choice_of("experiment", name, folder).content
    for setting, value in leaves({key: value for key, value in content.items() if key not in ("defaults", "hydra")}):
        yield Setting(setting, value, comments.get(setting.rpartition(".")[2], ""))


def _comments(path: Path) -> dict[str, str]:
    """Key -> the comment at its first appearance."""
    matches = filter(None, map(_COMMENTED.match, path.read_text(encoding="utf-8").splitlines()))
    return {match["key"]: match["comment"] or "" for match in reversed(list(matches))}
