"""Writes the tables of docs/models.md: every model with its data set and size, and the settings of its paper.

python scripts/write_models_page.py
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pipetrain.commands.list import rows
from pipetrain.runner.config.choices import group_overrides_of

PAGE = Path(__file__).resolve().parents[1] / "docs" / "models.md"
_MADE = re.compile(r"(?<=<!-- made by scripts/write_models_page.py -->\n).*?(?=<!-- end -->\n)", re.DOTALL)


def page(text: str, models: Sequence[Mapping[str, Any]]) -> str:
    """The text of the page with tables of these models, which are rows of `pipetrain list models --sizes`."""
    return _MADE.sub("\n" + "\n".join([_sizes(models), _papers(models)]) + "\n", text)


def _sizes(models: Sequence[Mapping[str, Any]]) -> str:
    cells = (
        [
            f"`{row['name']}`",
            row["summary"],
            row["task"],
            _set_by(row),
            f"{row['layers']}",
            f"{row['parameters']:,}",
        ]
        for row in models
    )
    return _table(["model", "", "task", "sets", "layers", "parameters"], cells)


def _set_by(row: Mapping[str, Any]) -> str:
    """The data set, and what else differs from what runs have without a model."""
    chosen = {"dataset": row["dataset"], **group_overrides_of("model", row["name"])}
    return ", ".join(f"`{group}={choice}`" for group, choice in chosen.items())


def _papers(models: Sequence[Mapping[str, Any]]) -> str:
    cells = ([f"`{row['name']}`", f"`{row['paper']}`"] for row in models if row["paper"])
    return _table(["model", "the settings of its paper"], cells)


def _table(heads: Sequence[str], cells: Iterable[Sequence[str]]) -> str:
    return "".join(f"| {' | '.join(row)} |\n" for row in (heads, ["---"] * len(heads), *cells))


if __name__ == "__main__":
    models = [row for row in rows("models", sizes=True) if "package" not in row]
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8"), models), encoding="utf-8")
