"""Writes docs/settings.md, every setting with its default and its meaning.

python scripts/write_settings_page.py
"""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from pipetrain.engine.errors import as_configured
from pipetrain.runner.config.choices import choices_of
from pipetrain.runner.config.reference import Section, Setting, groups, sections, settings_of_choice

PAGE = Path(__file__).resolve().parents[1] / "docs" / "settings.md"

_INTRODUCTION = """\
# Settings

`name.name=value` changes a setting, and `group=name` makes a choice. `pipetrain run --help` shows the settings below
and the choices of every group; `pipetrain list` describes the choices. A setting that nothing reads is rejected with
an error that suggests similar ones. `make docs` writes this page from the docstrings of
`pipetrain/runner/config/schema.py` and the comments of the files under `conf/`.

`hydra.run.dir` sets the directory of a run, `hydra.sweep.dir` that of a sweep.
"""
_CHOICES = """\
## Settings of the choices

The settings that each choice defines. Other parameters of its class or function are added with a leading `+`,
such as `+optimizer.maximize=true`; so does a target of your own, `group=custom group._target_=mylib.Thing`. For methods
and schedules see also [methods.md](methods.md).
"""
_GROUPS = [name for name in groups() if name != "experiment"]
_NOT_SHOWN = ("model.depth",)
"""What the names of the choices say."""


def page() -> str:
    """The text of the page."""
    parts = [_INTRODUCTION, *map(_section, sections()), _CHOICES, *map(_choices, _GROUPS)]
    return "\n".join(part for part in parts if part)


def _section(section: Section) -> str:
    rows = ([f"`{each.name}`", _default(each), _linked(each.meaning)] for each in section.settings)
    title = f"`{section.name}`" if section.name else "A run"
    return f"## {title}\n\n{_linked(section.meaning)}\n\n{_table(['setting', 'default', ''], rows)}"


def _choices(group: str) -> str:
    rows = [
        [f"`{setting.name}`", ", ".join(f"`{name}`" for name in names), _default(setting), _linked(setting.meaning)]
        for setting, names in _settings_of_choices(group).items()
    ]
    return f"### `{group}`\n\n{_table(['setting', 'of', 'default', ''], rows)}" if rows else ""


def _settings_of_choices(group: str) -> dict[Setting, list[str]]:
    """Setting -> the choices that bring it with the same default."""
    found: dict[Setting, list[str]] = {}
    for choice in (each for each in choices_of(group) if each.package is None):
        for setting in settings_of_choice(group, choice.name):
            if setting.name not in _NOT_SHOWN:
                found.setdefault(Setting(setting.name, _default(setting), setting.meaning), []).append(choice.name)
    return dict(sorted(found.items(), key=lambda item: item[0].name))


def _default(setting: Setting) -> str:
    """As the command line takes it; `???` stands for what must be given."""
    default = setting.default
    if isinstance(default, float) and default.is_integer():
        default = int(default)
    return "required" if default == "???" else as_configured(default)


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return "".join(f"| {' | '.join(cells)} |\n" for cells in (heads, ["---"] * len(heads), *rows))


def _linked(meaning: str) -> str:
    return re.sub(r"docs/([\w-]+\.md)", r"[\1](\1)", meaning)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
