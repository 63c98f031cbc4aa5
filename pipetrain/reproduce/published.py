"""The papers' numbers as they are printed, read from `results/published/PAPER/NAME.csv`."""

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

from pipetrain.errors import ConfigError

Row = Mapping[str, str]


@dataclass(frozen=True)
class PublishedTable:
    """One table, or the numbers that a paper states in its text; every row names its source.

    Attributes:
        name: of the file, such as `table4`.
        rows: column -> what is printed, from top to bottom.
    """

    name: str
    rows: tuple[Row, ...]

    def row(self, **keys: str) -> Row:
        """The only row with these entries."""
        found = [row for row in self.rows if all(row[key] == value for key, value in keys.items())]
        if len(found) != 1:
            raise KeyError(f"{self.name}: {len(found)} rows have {keys}")
        return found[0]

    def number(self, column: str, **keys: str) -> Fraction:
        """An entry of that row, exactly."""
        return Fraction(self.row(**keys)[column].lstrip("<>"))


Tables = Mapping[str, PublishedTable]
"""Name -> table, of one paper."""


def tables_of(folder: Path, paper: str) -> Tables:
    """All tables of a paper.

    Raises:
        ConfigError: there are none.
    """
    paths = sorted((folder / "published" / paper).glob("*.csv"))
    if not paths:
        raise ConfigError(f"--results {folder}: no {folder}/published/{paper}/*.csv; a checkout of pipetrain has them")
    return {path.stem: PublishedTable(path.stem, _rows(path)) for path in paths}


def _rows(path: Path) -> tuple[Row, ...]:
    with path.open(encoding="utf-8", newline="") as file:
        return tuple(csv.DictReader(file))
