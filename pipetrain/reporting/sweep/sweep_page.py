"""Page of a report: a self-contained HTML file with tables that can be sorted, and curves."""

from collections.abc import Sequence
from html import escape
from pathlib import Path
from string import Template

from pipetrain.reporting.html_page import html_page
from pipetrain.reporting.sweep.columns import (
    PREDICTED_STAGE,
    PREDICTED_STEP,
    SPEEDS,
    TO_TARGET,
    cells,
    column_of,
    metric_of,
)
from pipetrain.reporting.sweep.comparison import ComparedGroups
from pipetrain.reporting.sweep.groups import SweepGroup, labels_of, legend_of
from pipetrain.reporting.sweep.lines import line_styles
from pipetrain.reporting.sweep.slowdown import Slowdown, table_of
from pipetrain.reporting.sweep.sweep_figure import course_width, courses_of, heading, metric_curve_svg
from pipetrain.reporting.sweep.sweep_tables import (
    FROM_BEST,
    difference_cells,
    differences,
    not_completed,
    notes,
    statuses,
)
from pipetrain.runner.terminal.style import GRAY
from pipetrain.runner.terminal.text_table import counted, size_of

_BODY, _RULES = (Path(__file__).with_name(f"sweep_page.{ending}") for ending in ("html", "css"))
_PIXELS = 96
"""Pixels of an inch in browsers."""
_COSTS = (
    PREDICTED_STEP, "wall_s", "idle_share", "weight_bytes", "activation_bytes", "memory_bytes", PREDICTED_STAGE,
    "copies", "message_bytes", "message_share",
)  # fmt: skip


def page(title: str, compared: ComparedGroups) -> str:
    """The document: a table that can be sorted, the courses of all metrics, and memory and staleness of the stages."""
    groups = compared.groups
    runs = sum(len(group.runs) for group in groups)
    sign = "predicted, ~:" if compared.slowdowns else "predicted:"  # heads say predicted, cells of slowdowns have a ~
    lines = [*(note.replace("~:", sign) for note in notes(compared)), *not_completed(compared)]
    parts = {
        "HEADS": "\n".join(f'<p class="head">{escape(head)}</p>' for head in compared.heads),
        "COUNT": f"{counted(runs, 'run', 'runs')} of {counted(len(groups), 'configuration', 'configurations')}",
        "TABLE": _results(compared),
        "NOTES": "\n".join(f"<p>{escape(line)}</p>" for line in lines),
        "COURSES": "\n".join(_course(name, axis, groups) for name, axis in courses_of(compared.shown, groups)),
        "SETTINGS": _legend(groups),
        "SLOWDOWNS": "\n".join(_slowdown(each, groups) for each in compared.slowdowns),
        "STAGES": _stages(groups),
    }
    rules = _filled(_RULES, WIDTH=f"{_PIXELS * course_width(groups):.0f}")
    return html_page(title, _filled(_BODY, **parts), rules)


def _filled(template: Path, **parts: str) -> str:
    return Template(template.read_text(encoding="utf-8")).substitute(parts)


def _course(name: str, axis: str, groups: Sequence[SweepGroup]) -> str:
    return (
        f'<figure data-metric="{escape(name)}" data-axis="{axis}" aria-label="{escape(heading(name, axis))}">'
        f"{metric_curve_svg(name, axis, groups)}</figure>"
    )


def _table(identity: str, groups: Sequence[SweepGroup], columns: Sequence[tuple[str, Sequence[str]]]) -> str:
    """A table with a row for each group; `columns` are the elements of the head and of the cells."""
    rows, styles = [], line_styles([group.method for group in groups])
    for index, (label, style) in enumerate(zip(labels_of(groups), styles, strict=True)):
        cells = "".join(column[index] for _, column in columns)
        name = f'<th scope="row"><i style="background:{style.color}"></i>{escape(label)}</th>'
        rows.append(f'<tr data-group="{index}">{name}{cells}</tr>')
    head = f'<thead><tr><th scope="col">run</th>{"".join(head for head, _ in columns)}</tr></thead>'
    return "\n".join([f'<table id="{identity}">', head, "<tbody>", *rows, "</tbody>", "</table>"])


def columns_of(metric: str | None, groups: Sequence[SweepGroup]) -> list[str]:
    """The columns that any group has: first the results, then their costs."""
    evaluated = metric_of(groups, metric)
    named = [metric, evaluated, f"best_{evaluated}", *TO_TARGET, *SPEEDS, *_COSTS]
    return [name for name in dict.fromkeys(named) if name and any(group.values(name) for group in groups)]


def _results(compared: ComparedGroups) -> str:
    groups, metric, columns = compared.groups, compared.metric, []
    for name in columns_of(compared.shown, groups):
        column = column_of(name, groups)
        order = f' aria-sort="{"descending" if column.higher else "ascending"}"' if name == metric else ""
        means = [group.mean(name) for group in groups]
        columns.append(_sortable(column.head, cells(groups, name), means, higher=column.higher, order=order))
        if name == metric and (texts := difference_cells(groups, metric)):
            others = [each.middle if each else None for each in differences(groups, metric)[1:]]
            columns.append(_sortable(FROM_BEST, texts, [0.0, *others], higher=column.higher))
    completed = [len(group.completed) for group in groups]
    return _table("runs", groups, [*columns, _sortable("runs", list(map(statuses, groups)), completed, higher=True)])


def _sortable(
    head: str, texts: Sequence[str], values: Sequence[float | None], *, higher: bool, order: str = ""
) -> tuple[str, list[str]]:
    """A column that the page can sort by its values; a missing value is ""."""
    cells = [
        f'<td data-value="{"" if value is None else repr(value)}">{escape(text)}</td>'
        for text, value in zip(texts, values, strict=True)
    ]
    return f'<th scope="col" data-higher="{int(higher)}"{order}>{escape(head)}</th>', cells


def _legend(groups: Sequence[SweepGroup]) -> str:
    """The settings that differ, if the rows are numbered."""
    settings = legend_of(groups)[1:]
    return _section("settings", "Settings that differ", groups, settings) if settings else ""


def _slowdown(found: Slowdown, groups: Sequence[SweepGroup]) -> str:
    return _section(f"slowdown-{found.name}", found.heading, groups, table_of(found, groups)[1:])


def _section(identity: str, heading: str, groups: Sequence[SweepGroup], columns: Sequence[Sequence[str]]) -> str:
    """A heading with a table that cannot be sorted; each column begins with its head."""
    cells = [
        (f'<th scope="col">{escape(head)}</th>', [f"<td>{escape(value)}</td>" for value in values])
        for head, *values in columns
    ]
    return f'<h2>{escape(heading)}</h2>\n<div class="wide">\n{_table(identity, groups, cells)}\n</div>'


_HEIGHT, _NUMBER = 40.0, 12.0
_WIDEST_BAR, _MOST_WIDTH = 34.0, 420.0
_NUMBERED = 16
"""Stages at most whose bars have their number above them."""
_Bar = tuple[Sequence[float], str, str]
"""Values of a stage, one on the other, their description, and the number above them."""


def _stages(groups: Sequence[SweepGroup]) -> str:
    """Memory and staleness of the stages of each group as bars, with one scale for all groups.

    Memory are the peak bytes of weights, all their versions, and on them activations. Staleness are the updates between
    the weights that a forward reads and its own update, the most that was seen.
    """
    memory: list[list[_Bar]] = []
    staleness: list[list[_Bar]] = []
    for group in groups:
        sizes = zip(group.by_stage("weight_bytes_peak"), group.by_stage("activation_bytes_peak"), strict=False)
        texts = (((w, a), f"{size_of(w)} of weights, {size_of(a)} of activations", size_of(w + a)) for w, a in sizes)
        memory.append(list(texts))
        staleness.append([((late,), f"{late} updates late", str(late)) for late in group.staleness])
    heads = ("memory of each stage: weights, and pale the activations", "staleness of forwards, by stage")
    columns, styles = [], line_styles([group.method for group in groups])
    for head, of_groups in zip(heads, (memory, staleness), strict=True):
        most = max((sum(values) for stages in of_groups for values, _, _ in stages), default=0.0)
        bars = [_bars(each, most, style.color) for each, style in zip(of_groups, styles, strict=True)]
        columns.append((f"<th>{head}</th>", [f"<td>{each}</td>" for each in bars]))
    return _table("stages", groups, columns)


def _bars(stages: Sequence[_Bar], most: float, color: str) -> str:
    """The stages of a group as an SVG element; `most` is the largest sum of values of any group."""
    if not stages:
        return "-"
    widest = max(len(number) for _, _, number in stages)
    step = min(_WIDEST_BAR if widest < 4 else 1.9 * _WIDEST_BAR, _MOST_WIDTH / len(stages))
    pixels = _HEIGHT / most if most else 0.0
    parts = []
    for r, (values, text, number) in enumerate(stages):
        x, y, bars = r * step, _NUMBER + _HEIGHT, ""
        for value, opacity in zip(values, (1, 0.35), strict=False):
            height = pixels * value
            y -= height
            bars += (
                f'<rect x="{x + 1:.1f}" y="{y:.1f}" width="{max(0.5, step - 2):.1f}" height="{height:.1f}" '
                f'fill="{color}" opacity="{opacity}"/>'
            )
        if len(stages) <= _NUMBERED:
            bars += f'<text x="{x + step / 2:.1f}" y="{y - 2:.1f}" text-anchor="middle">{number}</text>'
        parts.append(f"<g><title>stage {r}: {text}</title>{bars}</g>")
    width, height = step * len(stages), _NUMBER + _HEIGHT + 1
    ground = f'<line x1="0" x2="{width:.1f}" y1="{height - 0.5:g}" y2="{height - 0.5:g}" stroke="{GRAY}"/>'
    size = f'width="{width:.0f}" height="{height:.0f}" viewBox="0 0 {width:.1f} {height:.1f}"'
    return f'<svg class="bars" {size}>{"".join(parts)}{ground}</svg>'
