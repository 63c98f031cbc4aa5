"""The figure of all papers: a mark for each claim."""

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path

from papers.forest import kind_of
from papers.svg import FAINT, MARKS, legend, line, mark, text, titled, write

FIGURE = "verdicts.svg"
_LEFT, _CLAIM, _ROW, _HEAD = 160, 20, 24, 44
Verdicts = Mapping[int, tuple[str, str]]
"""Number of a claim -> the claim and the verdict."""


def stored_verdicts(results: Path, paper: str) -> Verdicts:
    """The verdicts in a paper's `verdicts.csv`; none without one."""
    path = results / paper / "verdicts.csv"
    if not path.is_file():
        return {}
    with path.open(encoding="utf-8", newline="") as file:
        return {int(row["claim"]): (row["text"], row["verdict"]) for row in csv.DictReader(file)}


def draw(path: Path, papers: Sequence[tuple[str, Verdicts]]) -> None:
    """Draws a row of marks for each paper.

    Args:
        path: of the image.
        papers: the title of each, and its verdicts.
    """
    most = max(len(verdicts) for _, verdicts in papers)
    width = _LEFT + _CLAIM * (most + 1)
    parts = [legend(8, 14, MARKS)]
    parts += [
        text(_LEFT + _CLAIM * number, _HEAD - 8, f"{number}", text_anchor="middle", fill="#5b6470", font_size=10)
        for number in range(1, most + 1)
    ]
    for row, (title, verdicts) in enumerate(papers):
        y = _HEAD + _ROW * row
        parts += [line(8, y, width - 8, y, FAINT, 0.7), text(8, y + 16, title)]
        parts += [
            titled(f"{number}. {claim}: {verdict}", mark(kind_of(verdict), _LEFT + _CLAIM * number, y + 12))
            for number, (claim, verdict) in verdicts.items()
        ]
    write(path, width, _HEAD + _ROW * len(papers) + 4, parts)
