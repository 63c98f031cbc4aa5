"""Texts and labels in the columns of a table, .tsv or .csv, plain or .gz; numeric labels can be cut into classes."""

import bisect
import csv
import io
import math
import re
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from pipetrain.engine.errors import ConfigError, as_configured, check_whole
from pipetrain.zoo.data.text.classification import Examples, TextClasses
from pipetrain.zoo.data.text.text_files import read_text

if TYPE_CHECKING:
    import _csv


Column = str | int
"""A column's name in the first line, or its number from 0 where the table has no such line."""


class _TabSeparated(csv.excel_tab):
    """Tabs alone divide a line: quotation marks are part of the text."""

    quoting = csv.QUOTE_NONE


_WHOLE = re.compile(r"-?\d+")
_DIALECTS: dict[str, type[csv.Dialect]] = {".tsv": _TabSeparated, ".csv": csv.excel}


class Row(NamedTuple):
    """A line of a table, and its file and number for messages."""

    where: str
    text: str
    label: str


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
    """The texts of a table, each of the class that its label says; conf/dataset/labelled_table.yaml has the settings.

    `thresholds` cut numeric labels into classes; one that equals a threshold is above it.

    Raises:
        ConfigError: a file or column is missing, a line is malformed, or a label is of no class.
    """
    rows = _read("file", file, text, label)
    names, class_of = _label_classes(rows) if thresholds is None else _interval_classes(thresholds)

    def examples(rows: Sequence[Row]) -> Examples:
        return Examples([row.text for row in rows], [class_of(row) for row in rows])

    if eval_file is None:
        train, evaluation = examples(rows).split(eval_share)
    else:
        train, evaluation = examples(rows), examples(_read("eval_file", eval_file, text, label))
    return TextClasses(train, evaluation, names, tokens=tokens, vocabulary_size=vocabulary_size, max_length=max_length)


def _read(setting: str, file: str, text: Column, label: Column) -> list[Row]:
    path = Path(file).expanduser().absolute()
    dialect = _DIALECTS.get(path.with_suffix("").suffix if path.suffix == ".gz" else path.suffix)
    if dialect is None:
        raise ConfigError(f"dataset.{setting}={file}: the name of a table must end in .tsv, .csv, .tsv.gz or .csv.gz")
    table = read_text(path, f"dataset.{setting}={file}", "name a table, such as reviews.tsv or .csv.gz")
    rows = list(_rows(path, csv.reader(io.StringIO(table), dialect), text, label))
    if not rows:
        raise ConfigError(f"dataset.{setting}={file}: {path} has no lines")
    return rows


def _rows(path: Path, reader: "_csv.Reader", text: Column, label: Column) -> Iterator[Row]:
    begins = 1  # a text in quotation marks may go on over several lines
    try:
        columns = _numbers(path, reader, text, label)
        begins = reader.line_num + 1
        for row in reader:
            where, lines = f"{path}, line {begins}", reader.line_num + 1 - begins
            begins += lines
            if len(row) <= max(columns):
                joined = f"; it goes on over {lines} lines, as a quotation mark is not closed" if lines > 1 else ""
                raise ConfigError(
                    f"dataset: {where}: {len(row)} columns, and dataset.text={text} dataset.label={label} need "
                    f"{max(columns) + 1}{joined}"
                )
            found = Row(where, *(row[column].strip() for column in columns))
            if not found.text or not found.label:
                empty = "label" if found.text else "text"
                raise ConfigError(f"dataset: {where}: the {empty} is empty; remove the line")
            yield found
    except csv.Error as error:
        raise ConfigError(f"dataset: {path}, line {begins}: {error}") from error


def _numbers(path: Path, reader: Iterator[list[str]], text: Column, label: Column) -> tuple[int, int]:
    """Numbers of both columns; reads the line of names if they are given by name."""
    if isinstance(text, int) and isinstance(label, int):
        check_whole("dataset.text", text, least=0)
        check_whole("dataset.label", label, least=0)
        return text, label
    names = next(reader)
    for setting, column in (("text", text), ("label", label)):
        if column not in names:
            raise ConfigError(
                f"dataset.{setting}={column}: the first line of {path} has the columns {', '.join(names)}; name "
                "two of them, or count both from 0 where no line has names: dataset.text=1 dataset.label=0"
            )
    return names.index(str(text)), names.index(str(label))


Classes = tuple[Sequence[str], Callable[[Row], int]]
"""Names of the classes, and the number of a line's class."""


def _label_classes(rows: Sequence[Row]) -> Classes:
    """A class for each different label, in order, numbers by size."""
    labels = {row.label for row in rows}
    whole = all(_WHOLE.fullmatch(label) for label in labels)
    names = sorted(labels, key=int) if whole else sorted(labels)
    numbers = {name: number for number, name in enumerate(names)}
    if not whole and all(map(_is_number, labels)):
        raise ConfigError(
            f"dataset: {rows[0].where}: the label {rows[0].label!r} is a number, not a class; cut numbers into "
            "classes, such as by dataset.thresholds=[0.5]"
        )

    def class_of(row: Row) -> int:
        if row.label not in numbers:
            raise ConfigError(
                f"dataset: {row.where}: the label {row.label!r} is not one of the {len(names)} labels of the training "
                "texts"
            )
        return numbers[row.label]

    return names, class_of


def _interval_classes(thresholds: Sequence[float]) -> Classes:
    """A class for each interval of numeric labels between thresholds."""
    ascending = list(thresholds)
    if not ascending or sorted(set(ascending)) != ascending:
        raise ConfigError(f"dataset.thresholds={as_configured(thresholds)}: must be ascending numbers, such as [0.5]")

    def class_of(row: Row) -> int:
        if not _is_number(row.label):
            raise ConfigError(
                f"dataset: {row.where}: the label {row.label!r} is not a number, which dataset.thresholds need"
            )
        return bisect.bisect_right(ascending, float(row.label))

    between = [f"{low} to {high}" for low, high in pairwise(ascending)]
    return [f"below {ascending[0]}", *between, f"from {ascending[-1]}"], class_of


def _is_number(label: str) -> bool:
    try:
        return math.isfinite(float(label))
    except ValueError:
        return False
