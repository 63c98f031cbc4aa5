"""The lines of a table that has a text and a label in each: .tsv or .csv, plain or .gz."""

import csv
import gzip
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from pipetrain.errors import ConfigError, check_whole, one_line

if TYPE_CHECKING:
    import _csv

Column = str | int
"""A column's name in the first line, or its number from 0 where the table has no such line."""


class _TabSeparated(csv.excel_tab):
    """Tabs alone divide a line: quotation marks are part of the text."""

    quoting = csv.QUOTE_NONE


_DIALECTS = {".tsv": _TabSeparated, ".csv": csv.excel}


@dataclass(frozen=True)
class Row:
    """A line of a table.

    Attributes:
        where: file and line, for messages.
        text, label: as they stand there.
    """

    where: str
    text: str
    label: str


@dataclass(frozen=True)
class Columns:
    """Which columns of a table are read: both by name, or both by number."""

    text: Column
    label: Column

    def rows(self, path: Path) -> Iterator[Row]:
        """The lines of a table.

        Raises:
            ConfigError: the file is no table, has no such columns, or a line is malformed.
        """
        try:
            with _opened(path) as lines:
                yield from self._rows(path, lines)
        except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
            raise ConfigError(f"dataset: {path} is damaged, or no text: {one_line(error)}") from error

    def _rows(self, path: Path, lines: Iterable[str]) -> Iterator[Row]:
        reader = _reader(path, lines)
        try:
            text, label = self._numbers(path, reader)
            for row in reader:
                where = f"{path}, line {reader.line_num}"
                if len(row) <= max(text, label):
                    raise ConfigError(
                        f"dataset: {where}: {len(row)} columns, and dataset.text={self.text} "
                        f"dataset.label={self.label} need {max(text, label) + 1}"
                    )
                for what, column in (("text", text), ("label", label)):
                    if not row[column].strip():
                        raise ConfigError(f"dataset: {where}: the {what} is empty; take the line out")
                yield Row(where, row[text].strip(), row[label].strip())
        except csv.Error as error:
            raise ConfigError(f"dataset: {path}, line {reader.line_num}: {error}") from error

    def _numbers(self, path: Path, reader: Iterator[list[str]]) -> tuple[int, int]:
        """Where the columns stand; reads the line of names if they are given by name."""
        if isinstance(self.text, int) and isinstance(self.label, int):
            check_whole("dataset.text", self.text, least=0)
            check_whole("dataset.label", self.label, least=0)
            return self.text, self.label
        names = next(reader, [])
        if not names:
            raise ConfigError(f"dataset: {path} does not begin with a line of names")
        for setting, column in (("text", self.text), ("label", self.label)):
            if column not in names:
                raise ConfigError(
                    f"dataset.{setting}={column}: the first line of {path} has the columns {', '.join(names)}; name "
                    "two of them, or count both from 0 where no line has names: dataset.text=1 dataset.label=0"
                )
        return names.index(str(self.text)), names.index(str(self.label))


def _opened(path: Path) -> TextIO:
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8-sig", newline="")  # spreadsheets put a byte order mark first
    return path.open(encoding="utf-8-sig", newline="")


def _reader(path: Path, lines: Iterable[str]) -> "_csv.Reader":
    kind = path.with_suffix("").suffix if path.suffix == ".gz" else path.suffix
    if kind not in _DIALECTS:
        raise ConfigError(f"dataset: {path}: a table is called .tsv or .csv, or so with .gz behind")
    return csv.reader(lines, _DIALECTS[kind])
