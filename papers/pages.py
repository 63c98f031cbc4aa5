"""Writes a page for each paper, with its figures."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from papers import field_map, field_map_page, lines, measured_section, slowdown, v_shaped
from papers.measured_section import experiments, figure_of
from papers.paper import read_tables
from papers.paper_page import page
from papers.publications import PAPERS
from papers.results import read_results
from pipetrain.engine.errors import ConfigError
from pipetrain.runner.tracking.files import write_whole


def write_pages(names: Sequence[str], results: Path, output: Path) -> Iterator[Path]:
    """Writes the pages and figures of these papers, or of all, and yields the files.

    Args:
        names: of papers, `map`, `slowdown` or `v_shaped`; none: all.
        results: the folder with `published/`, and with what experiments measured.
        output: where the pages go; figures go to `images/` in it.

    Raises:
        ConfigError: there is no such paper or no file of its numbers, or results are damaged.
    """
    every = (*PAPERS, field_map.NAME, slowdown.NAME, v_shaped.NAME)
    for name in names:
        if name not in every:
            raise ConfigError(f"pages {name}: no paper of that name; there are {', '.join(every)}")
    papers = [PAPERS[name] for name in names or PAPERS if name in PAPERS]
    tables = {paper.name: read_tables(results, paper.name) for paper in papers}
    found = {paper.name: read_results(results, paper.name) for paper in papers}
    images = output / "images"
    images.mkdir(parents=True, exist_ok=True)
    if not names or field_map.NAME in names:
        yield from _write_map(results, output)
    if not names or slowdown.NAME in names:
        yield from _write_slowdown(results, output)
    if not names or v_shaped.NAME in names:
        yield from _write_v_shaped(results, output)
    for paper in papers:
        for figure in paper.figures:
            figure.draw(images / figure.name)
            yield images / figure.name
        for parts in experiments(found[paper.name]):
            drawn = images / figure_of(paper, parts)
            measured_section.draw_measured(drawn, parts)
            yield drawn
        text = page(paper, tables[paper.name], found[paper.name])
        write_whole(output / f"{paper.name}.md", text)
        yield output / f"{paper.name}.md"


def _write_map(results: Path, output: Path) -> Iterator[Path]:
    maps = field_map.maps_of(results)
    for found in maps:
        lines.draw(output / "images" / found.figure, found.lines, found.plain)
        yield output / "images" / found.figure
    write_whole(output / f"{field_map.NAME}.md", field_map_page.page(maps))
    yield output / f"{field_map.NAME}.md"


def _write_slowdown(results: Path, output: Path) -> Iterator[Path]:
    (scale, of_one_rate), (_, tuned) = (slowdown.lines_of(results, tuned=tuned) for tuned in (False, True))
    for name, found in ((slowdown.FIGURE, of_one_rate), (slowdown.TUNED_FIGURE, tuned)):
        if found:
            lines.draw(output / "images" / name, found)
            yield output / "images" / name
    write_whole(output / f"{slowdown.NAME}.md", slowdown.page(scale, of_one_rate, tuned))
    yield output / f"{slowdown.NAME}.md"


def _write_v_shaped(results: Path, output: Path) -> Iterator[Path]:
    scale, pairs = v_shaped.pairs_of(results)
    if pairs:
        v_shaped.draw(output / "images" / v_shaped.FIGURE, pairs)
        yield output / "images" / v_shaped.FIGURE
    write_whole(output / f"{v_shaped.NAME}.md", v_shaped.page(scale, pairs))
    yield output / f"{v_shaped.NAME}.md"
