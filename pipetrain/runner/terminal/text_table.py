"""Tables of plain text, for the terminal, for Markdown and as CSV."""

import csv
import io
import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape

Row = Sequence[str] | str
"""The cells of a row, or a line that runs across all columns."""
_MOST_ROWS, _ENDS = 16, 4


def text_table(heads: Sequence[str], rows: Iterable[Row], align: str) -> list[str]:
    """The lines of a table, the heads of its columns first; see `text_lines`."""
    return text_lines([heads, *rows], align)


def text_lines(rows: Sequence[Row], align: str) -> list[str]:
    """The lines of a table without heads, its columns two spaces apart.

    Args:
        rows: from top to bottom.
        align: `<` or `>` for each column: to which side its cells go.
    """
    columns = zip(*(row for row in rows if not isinstance(row, str)), strict=True)
    widths = [max(map(len, column)) for column in columns]
    lines = []
    for row in rows:
        if not isinstance(row, str):
            row = "  ".join(f"{cell:{side}{n}}" for cell, side, n in zip(row, align, widths, strict=True)).rstrip()
        lines.append(row)
    return lines


def markdown_table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """The lines of a table in Markdown."""
    return [f"| {' | '.join(row)} |" for row in (heads, ["---"] * len(heads), *rows)]


def markdown_text(text: str) -> str:
    """The text as Markdown shows it, without links and HTML: names and reasons of runs may be another's."""
    return re.sub(r"[\\`\[\]|]", r"\\\g<0>", escape(printable(text), quote=False))


def both_ends(rows: Sequence[Row], rest: str) -> list[Row]:
    """The rows; of more than 16 the first and last four, and between them how many are left out and where they are."""
    if len(rows) <= _MOST_ROWS:
        return list(rows)
    return [*rows[:_ENDS], f"  ...  {len(rows) - 2 * _ENDS} more {rest}", *rows[-_ENDS:]]


def number_list(values: Iterable[int]) -> str:
    """The numbers as one cell of a table; `-` if empty."""
    return ",".join(map(str, values)) or "-"


def range_list(values: Iterable[int]) -> str:
    """Ascending numbers as one cell of a table, those in a row as a range: `0-3,5`; `-` if empty."""
    rows: list[list[int]] = []
    for value in values:
        if rows and rows[-1][-1] == value - 1:
            rows[-1][1:] = [value]
        else:
            rows.append([value])
    return ",".join("-".join(map(str, ends)) for ends in rows) or "-"


def counted(number: int, one: str, several: str) -> str:
    """The number with its noun."""
    return f"{number} {one if number == 1 else several}"


def size_of(count: float) -> str:
    """A number of bytes as text, in a suitable unit."""
    unit, size = unit_of(count)
    value = count / size
    return f"{value:.0f} {unit}" if unit == "B" or value >= 99.95 else f"{value:.3g} {unit}"


def unit_of(count: float) -> tuple[str, float]:
    """The unit for a number of bytes, and its size in bytes."""
    unit, size = "B", 1.0
    for larger in ("kB", "MB", "GB", "TB"):
        if count / size < 999.5:
            break
        unit, size = larger, size * 1000
    return unit, size


def csv_table(rows: Sequence[Mapping[str, object]]) -> str:
    """CSV of rows by column, with the columns of all of them in order of appearance."""
    file = io.StringIO()
    writer = csv.DictWriter(file, list(dict.fromkeys(name for row in rows for name in row)), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return file.getvalue()


def rate_of(per_second: float) -> str:
    """Samples or tokens per second as text, rounded for readers."""
    return f"{per_second:,.0f}" if per_second >= 99.5 else f"{per_second:.3g}"


def printable(text: str) -> str:
    """The text with a question mark for every control character."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def shortened(text: str, width: int) -> str:
    """The text with dots in place of its middle where it is longer than `width`."""
    if len(text) <= width:
        return text
    kept = max(2, width - 3)
    return f"{text[: kept // 2]}...{text[len(text) - (kept - kept // 2) :]}"
