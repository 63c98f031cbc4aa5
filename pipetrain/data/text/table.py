"""Texts and labels in the columns of a table, .tsv or .csv, plain or .gz; numeric labels can be cut into classes."""

import bisect
import csv
import gzip
import math
import re
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from typing_extensions import override

from pipetrain.data.text.classification import Examples, TextClasses, TextEncoding, text_classes
from pipetrain.errors import ConfigError, as_configured, check_whole, one_line

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
    """Columns of a table that are read: both by name, or both by number."""

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
        """Numbers of the columns; reads the line of names if they are given by name."""
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
        raise ConfigError(f"dataset: {path}: a table is called .tsv or .csv, or .tsv.gz or .csv.gz")
    return csv.reader(lines, _DIALECTS[kind])


_WHOLE = re.compile(r"-?\d+")


def labelled_table(  # noqa: PLR0913  (one for each setting of the choice)
    file: str,
    eval_file: str | None = None,
    eval_share: float = 0.1,
    text: Column = "text",
    label: Column = "label",
    thresholds: Sequence[float] | None = None,
    tokens: str = "words",
    vocabulary_size: int | None = 8000,
    max_length: int = 256,
) -> TextClasses:
    """The texts of a table, each of the class that its label says.

    Args:
        file: the table, tab-separated (.tsv), or comma-separated with quotes (.csv); either may be gzipped (.gz).
        eval_file: a table to evaluate on; None for a share of `file`.
        eval_share: that share.
        text: the column of the texts, by its name in the first line or by its number from 0 where no line has names.
        label: the column of the labels, likewise.
        thresholds: ascending numbers that cut numeric labels into classes; one that equals a threshold is above it.
            None if each label is a class.
        tokens: `words` or `bpe` (subwords).
        vocabulary_size: different tokens at most.
        max_length: tokens of a text at most; what follows is cut off.

    Raises:
        ConfigError: a file or column is missing, a line is malformed, or a label is of no class.
    """
    columns = Columns(text, label)
    rows = _read("file", file, columns)
    classes = _Different(rows) if thresholds is None else _Intervals(thresholds)
    if eval_file is None:
        train, evaluation = classes.examples(rows).split(eval_share)
    else:
        train, evaluation = classes.examples(rows), classes.examples(_read("eval_file", eval_file, columns))
    return text_classes(train, evaluation, classes.names, TextEncoding(tokens, vocabulary_size, max_length))


def _read(setting: str, file: str, columns: Columns) -> list[Row]:
    path = Path(file).expanduser().absolute()
    if not path.is_file():
        raise ConfigError(f"dataset.{setting}={file}: no file {path}; name a table, such as reviews.tsv or .csv.gz")
    rows = list(columns.rows(path))
    if not rows:
        raise ConfigError(f"dataset.{setting}={file}: {path} has no lines")
    return rows


class _Classes(ABC):
    """Mapping of labels to classes.

    Attributes:
        names: of the classes.
    """

    names: Sequence[str]

    @abstractmethod
    def number(self, row: Row) -> int:
        """The number of the class of a line.

        Raises:
            ConfigError: its label is of no class.
        """

    def examples(self, rows: Sequence[Row]) -> Examples:
        """The texts, and the numbers of their classes."""
        return Examples([row.text for row in rows], [self.number(row) for row in rows])


class _Different(_Classes):
    """Each different label is a class; they are in order, numbers by size."""

    def __init__(self, rows: Sequence[Row]) -> None:
        labels = {row.label for row in rows}
        whole = all(_WHOLE.fullmatch(label) for label in labels)
        self.names = sorted(labels, key=int) if whole else sorted(labels)
        self._numbers = {name: number for number, name in enumerate(self.names)}
        if not whole and all(map(_is_number, labels)):
            raise ConfigError(
                f"dataset: {rows[0].where}: the label {rows[0].label!r} is a number and no class; cut numbers into "
                "classes: dataset.thresholds=[0.5]"
            )

    @override
    def number(self, row: Row) -> int:
        if row.label not in self._numbers:
            raise ConfigError(
                f"dataset: {row.where}: the label {row.label!r} is none of the {len(self.names)} that the texts to "
                "train on have"
            )
        return self._numbers[row.label]


def _is_number(label: str) -> bool:
    try:
        return math.isfinite(float(label))
    except ValueError:
        return False


class _Intervals(_Classes):
    """Numeric labels between thresholds."""

    def __init__(self, thresholds: Sequence[float]) -> None:
        self._thresholds = list(thresholds)
        if not self._thresholds or sorted(set(self._thresholds)) != self._thresholds:
            raise ConfigError(f"dataset.thresholds={as_configured(thresholds)}: ascending numbers, such as [0.5]")
        first, last = self._thresholds[0], self._thresholds[-1]
        between = [f"{low} to {high}" for low, high in zip(self._thresholds, self._thresholds[1:], strict=False)]
        self.names = [f"below {first}", *between, f"from {last}"]

    @override
    def number(self, row: Row) -> int:
        if not _is_number(row.label):
            raise ConfigError(
                f"dataset: {row.where}: the label {row.label!r} is no number, and dataset.thresholds cut numbers"
            )
        return bisect.bisect_right(self._thresholds, float(row.label))
