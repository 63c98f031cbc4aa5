"""Writes a page for each paper, with its figures and the tables behind it."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from papers import field_map_page, message_formats_page, overview, slowdown, v_shaped
from papers.curves import Bar, Course, curve_of, draw_bars, draw_courses
from papers.evidence import experiments, mean_of, network_of, ranked, tables_of, throughput_of
from papers.forest import draw as draw_forest
from papers.kept_runs import read_groups
from papers.paper import Paper, Tables, read_tables
from papers.paper_page import caption_of, figure_of, forest_of, page, timings_of
from papers.publications import PAPERS
from papers.results import Measured, MeasuredGroup, Results, read_results
from pipetrain.engine.errors import ConfigError
from pipetrain.runner.terminal.text_table import csv_table
from pipetrain.runner.tracking.files import write_whole
from pipetrain.runner.tracking.throughput import MEASURED, PREDICTED


def write_pages(names: Sequence[str], results: Path, output: Path) -> Iterator[Path]:
    """Writes the pages, figures and tables of these papers, or of all, and yields the files.

    Args:
        names: of papers, `map`, `slowdown`, `v_shaped` or `messages`; none: all.
        results: the folder with `published/`, and with what experiments measured. Tables go to `PAPER/` in it.
        output: where the pages go; figures go to `images/` in it.

    Raises:
        ConfigError: there is no such paper or no file of its numbers, or results are damaged.
    """
    others = {each.NAME: each.write for each in (field_map_page, slowdown, v_shaped, message_formats_page)}
    every = (*PAPERS, *others)
    for name in names:
        if name not in every:
            raise ConfigError(f"pages {name}: no paper of that name; there are {', '.join(every)}")
    papers = [PAPERS[name] for name in names or PAPERS if name in PAPERS]
    known = [(paper, read_tables(results, paper.name), read_results(results, paper.name)) for paper in papers]
    (output / "images").mkdir(parents=True, exist_ok=True)
    for name, write in others.items():
        if not names or name in names:
            yield from write(results, output)
    for paper, tables, found in known:
        yield from _write(paper, tables, found, results / paper.name, output)
    if papers:
        drawn = output / "images" / overview.FIGURE
        rows = [(paper.short, overview.stored_verdicts(results, name)) for name, paper in PAPERS.items()]
        overview.draw(drawn, [each for each in rows if each[1]])
        yield drawn


def _write(paper: Paper, tables: Tables, found: Results, folder: Path, output: Path) -> Iterator[Path]:
    claims, images = paper.claims(tables, found), output / "images"
    for figure in paper.figures:
        figure.draw(images / figure.name)
        yield images / figure.name
    forest = images / forest_of(paper)
    if draw_forest(forest, claims, lambda name: network_of(paper.name, found[name]).split()[0]):
        yield forest
    yield from _draw_experiments(paper, found, images)
    folder.mkdir(exist_ok=True)
    for name, rows in tables_of(paper, tables, found, claims).items():
        write_whole(folder / name, csv_table(rows))
        yield folder / name
    write_whole(output / f"{paper.name}.md", page(paper, tables, found, claims))
    yield output / f"{paper.name}.md"


def _draw_experiments(paper: Paper, found: Results, images: Path) -> Iterator[Path]:
    timed = []
    for parts in experiments(found):
        groups = [group for part in parts for group in read_groups(part.folder)]
        curve = curve_of(groups, parts[0].metric)
        if curve is None:
            network = network_of(paper.name, parts[0])
            timed.append((f"{parts[0].experiment}: {network}", list(_bars(parts))))
            continue
        column = ranked(paper, parts[0])
        labels = {group.name: _label(group, column) for part in parts for group in part.groups}
        courses = [
            Course(group.name, labels[group.name], group.course(*curve), not group.completed) for group in groups
        ]
        draw_courses(images / figure_of(paper, parts), *curve, courses, caption_of(paper, parts))
        yield images / figure_of(paper, parts)
    if timed:
        draw_bars(images / timings_of(paper), timed)
        yield images / timings_of(paper)


def _label(group: MeasuredGroup, column: str | None) -> str:
    """The result of a configuration, and how many of its runs failed."""
    mean = mean_of(group, column) if column else ""
    lost = f"{group.failed} of {group.conclusive} failed" if group.failed else ""
    return ", ".join(filter(None, (mean, lost)))


def _bars(parts: Sequence[Measured]) -> Iterator[Bar]:
    for group in (group for part in parts for group in part.groups):
        rates = [group.means[name] for name in (MEASURED, PREDICTED) if name in group.means]
        if rates:
            yield Bar(group.name, rates[0], throughput_of(group))
