"""Writes the tables of docs/models.md: every model with its size, the settings of its paper, and all other choices.

python scripts/write_models_page.py
"""

import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pipetrain.commands.list import rows
from pipetrain.runner.config.choices import choices_of_run, group_overrides_of

PAGE = Path(__file__).resolve().parents[1] / "docs" / "models.md"
_MADE = re.compile(r"(<!-- (?P<part>\w+): made by scripts/write_models_page.py -->\n).*?(<!-- end -->\n)", re.DOTALL)
_OTHERS = {
    "datasets": "dataset",
    "schedules": "schedule",
    "partitions": "partition",
    "optimizers": "optimizer",
    "lr_schedules": "lr_schedule",
    "losses": "loss",
    "executors": "executor",
}
"""Kind of `pipetrain list` -> group on the command line."""
_WIDTH = 110


def page(text: str, models: Sequence[Mapping[str, Any]]) -> str:
    """The text of the page with tables of these models, which are rows of `pipetrain list models --sizes`."""
    parts = {"models": _sizes(models), "papers": _papers(models), "choices": _choices()}
    return _MADE.sub(lambda made: f"{made[1]}\n{parts[made['part']]}\n{made[3]}", text)


def _sizes(models: Sequence[Mapping[str, Any]]) -> str:
    cells = (
        [
            f"`{row['name']}`",
            f"{row['summary']}{_set_by(row)}",
            f"{row['parameters']:,} in {row['layers']} layers",
        ]
        for row in models
    )
    return _table(["`model=`", "", "parameters"], cells)


def _set_by(row: Mapping[str, Any]) -> str:
    """What differs from the choices of a run that names no model."""
    usual = choices_of_run({})
    chosen = {"dataset": row["dataset"], **group_overrides_of("model", row["name"])}
    told = [f"`{group}={choice}`" for group, choice in chosen.items() if usual.get(group) != choice]
    return f". Sets {', '.join(told)}" if told else ""


def _papers(models: Sequence[Mapping[str, Any]]) -> str:
    """The command of each paper's settings, once for all models that share them."""
    alike: dict[str, list[str]] = {}
    for row in models:
        if row["paper"]:
            alike.setdefault(row["paper"], []).append(row["name"])
    return "".join(["```\n", *(_command(names, settings) for settings, names in alike.items()), "```\n"])


def _command(names: Sequence[str], settings: str) -> str:
    head = f"# {', '.join(names)}\n" if len(names) > 1 else ""
    lines = textwrap.wrap(
        f"pipetrain run model={names[0]} {settings}",
        _WIDTH,
        subsequent_indent=" " * 4,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return head + " \\\n".join(lines) + "\n"


def _choices() -> str:
    return "\n".join(_group(kind, group) for kind, group in _OTHERS.items())


def _group(kind: str, group: str) -> str:
    listed = [row for row in rows(kind, sizes=False) if "package" not in row]
    cells = ([f"`{row['name']}`", row["summary"]] for row in listed)
    return _table([f"`{group}=`", ""], cells)


def _table(heads: Sequence[str], cells: Iterable[Sequence[str]]) -> str:
    return "".join(f"| {' | '.join(row)} |\n" for row in (heads, ["---"] * len(heads), *cells))


if __name__ == "__main__":
    models = [row for row in rows("models", sizes=True) if "package" not in row]
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8"), models), encoding="utf-8")
