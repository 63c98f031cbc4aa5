"""Tables and figures that need no training, one at a time."""

from collections.abc import Callable, Sequence
from pathlib import Path

from papers.paper import Paper, read_tables
from papers.paper_page import HEADS, comparison_cells
from papers.publications import PAPERS
from papers.targets import full_name, parts_of
from pipetrain.runner.terminal.text_table import text_table

RESULTS = Path(__file__).parents[1] / "results"


def computed_part(name: str) -> Callable[[Path], Sequence[str]] | None:
    """Function that computes a table or figure: draws it into a folder, or returns its lines; None if it is unknown.

    Args:
        name: such as `zhang/table7` or `zhang-fig8`.
    """
    paper_name, _, part = full_name(name).partition("/")
    paper = PAPERS.get(paper_name)
    if paper is None:
        return None
    return paper.computed.get(part) or _figure(paper, part) or _comparisons(paper, part)


def _figure(paper: Paper, part: str) -> Callable[[Path], Sequence[str]] | None:
    found = [figure for figure in paper.figures if figure.part == part]

    def draw(folder: Path) -> list[str]:
        folder.mkdir(parents=True, exist_ok=True)
        for figure in found:
            figure.draw(folder / figure.name)
        return [f"{figure.caption}\nwritten to {folder / figure.name}" for figure in found]

    return draw if found else None


def _comparisons(paper: Paper, part: str) -> Callable[[Path], Sequence[str]] | None:
    found = [each for each in paper.exact(read_tables(RESULTS, paper.name)) if part in parts_of(each.source)]
    cells, notes = comparison_cells(found)
    return (lambda _: [*text_table(HEADS, cells, "<<>><"), *notes]) if found else None
