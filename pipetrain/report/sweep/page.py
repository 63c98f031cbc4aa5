"""The runs of a sweep as one self-contained HTML file, to look at in a browser."""

from collections.abc import Sequence
from html import escape
from pathlib import Path
from string import Template

from pipetrain.report.sweep.colors import LineStyle, group_styles
from pipetrain.report.sweep.columns import TO_TARGET, cells, column_of, metric_of
from pipetrain.report.sweep.compared_run import ComparedRun
from pipetrain.report.sweep.courses import courses_of, heading
from pipetrain.report.sweep.figure import course_svg, course_width
from pipetrain.report.sweep.from_best import FROM_BEST, difference_cells, differences
from pipetrain.report.sweep.groups import SweepGroup, labels_of, legend_of
from pipetrain.report.sweep.stage_bars import memory_bars, staleness_bars
from pipetrain.report.sweep.table import not_completed, notes, statuses
from pipetrain.report.text_table import counted
from pipetrain.tracking.throughput import MEASURED, PREDICTED, in_tokens

_TEMPLATE = Path(__file__).with_name("page.html")
_SPEEDS = (MEASURED, PREDICTED, in_tokens(MEASURED), in_tokens(PREDICTED))
_PIXELS = 96
"""Of an inch, in browsers."""
_TOOK = ("wall_s", "idle_share", "weight_bytes", "activation_bytes", "memory_bytes", "copies")


def page(title: str, metric: str | None, groups: Sequence[SweepGroup], skipped: Sequence[ComparedRun] = ()) -> str:
    """The document: a table that can be sorted, the courses of all metrics, and what every stage holds.

    Args:
        title: as text.
        metric: what the groups are ranked by.
        groups: best first.
        skipped: runs that cannot be read.
    """
    runs = sum(len(group.runs) for group in groups)
    said = [*(note.replace("~:", "predicted:") for note in notes(groups, metric)), *not_completed(groups, skipped)]
    parts = {
        "TITLE": escape(title),
        "COUNT": f"{counted(runs, 'run', 'runs')} of {counted(len(groups), 'configuration', 'configurations')}",
        "TABLE": _table(metric, groups),
        "NOTES": "\n".join(f"<p>{escape(note)}</p>" for note in said),
        "WIDTH": f"{_PIXELS * course_width(groups):.0f}",
        "COURSES": "\n".join(_course(name, axis, groups) for name, axis in courses_of(metric, groups)),
        "SETTINGS": _legend(groups),
        "STAGES": _stages(groups),
    }
    return Template(_TEMPLATE.read_text(encoding="utf-8")).substitute(parts)


def _course(name: str, axis: str, groups: Sequence[SweepGroup]) -> str:
    return (
        f'<figure data-metric="{escape(name)}" data-axis="{axis}" aria-label="{escape(heading(name, axis))}">'
        f"{course_svg(name, axis, groups)}</figure>"
    )


def columns_of(metric: str | None, groups: Sequence[SweepGroup]) -> list[str]:
    """The columns that any group has: first what the runs came to, then what it took."""
    evaluated = metric_of(groups, metric)
    named = [metric, evaluated, f"best_{evaluated}", *TO_TARGET, *_SPEEDS, *_TOOK]
    return [name for name in dict.fromkeys(named) if name and any(group.values(name) for group in groups)]


def _table(metric: str | None, groups: Sequence[SweepGroup]) -> str:
    heads, columns = [], []
    for name in columns_of(metric, groups):
        means = [_value(group.mean(name)) for group in groups]
        heads.append(_head(name, groups, ranked=name == metric))
        columns.append(list(zip(means, cells(groups, name), strict=True)))
        if name == metric and (behind := difference_cells(groups, metric)):
            others = [each.middle if each else None for each in differences(groups, metric)[1:]]
            heads.append(f'<th scope="col" data-higher="{int(column_of(name, groups).higher)}">{FROM_BEST}</th>')
            columns.append([(_value(mean), cell) for mean, cell in zip([0.0, *others], behind, strict=True)])
    shown = list(zip(*columns, strict=True)) or [()] * len(groups)
    rows = []
    every = zip(groups, labels_of(groups), group_styles(groups), shown, strict=True)
    for index, (group, name, look, numbers) in enumerate(every):
        texts = "".join(f'<td data-value="{value}">{escape(text)}</td>' for value, text in numbers)
        ended = f'<td data-value="{len(group.completed)}">{escape(statuses(group))}</td>'
        rows.append(f'<tr data-group="{index}"><th scope="row">{_swatch(look)}{escape(name)}</th>{texts}{ended}</tr>')
    head = f'<tr><th scope="col">run</th>{"".join(heads)}<th scope="col" data-higher="1">runs</th></tr>'
    return "\n".join(['<table id="runs">', f"<thead>{head}</thead>", "<tbody>", *rows, "</tbody>", "</table>"])


def _legend(groups: Sequence[SweepGroup]) -> str:
    """The settings that differ, where the rows go by numbers."""
    columns = legend_of(groups)
    if not columns:
        return ""
    (_, *heads), *rows = zip(*columns, strict=True)
    head = "".join(f'<th scope="col">{escape(each)}</th>' for each in ("run", *heads))
    body = [
        f'<tr data-group="{index}"><th scope="row">{_swatch(look)}{escape(label)}</th>'
        f"{''.join(f'<td>{escape(value)}</td>' for value in values)}</tr>"
        for index, (label, look, (_, *values)) in enumerate(
            zip(labels_of(groups), group_styles(groups), rows, strict=True)
        )
    ]
    table = ['<table id="settings">', f"<thead><tr>{head}</tr></thead>", "<tbody>", *body, "</tbody>", "</table>"]
    return "\n".join(["<h2>Settings that differ</h2>", '<div class="wide">', *table, "</div>"])


def _head(name: str, groups: Sequence[SweepGroup], *, ranked: bool) -> str:
    column = column_of(name, groups)
    order = f' aria-sort="{"descending" if column.higher else "ascending"}"' if ranked else ""
    return f'<th scope="col" data-higher="{int(column.higher)}"{order}>{escape(column.head)}</th>'


def _value(mean: float | None) -> str:
    return "" if mean is None else repr(mean)


def _swatch(look: LineStyle) -> str:
    return f'<i style="background:{look.color}"></i>'


def _stages(groups: Sequence[SweepGroup]) -> str:
    """A row for each group: memory and staleness of its stages as bars."""
    rows = [
        f'<tr data-group="{index}"><th scope="row">{_swatch(look)}{escape(name)}</th>'
        f"<td>{memory}</td><td>{staleness}</td></tr>"
        for index, (name, look, memory, staleness) in enumerate(
            zip(labels_of(groups), group_styles(groups), memory_bars(groups), staleness_bars(groups), strict=True)
        )
    ]
    head = (
        "<tr><th>run</th><th>memory of each stage: weights, and pale the activations</th>"
        "<th>staleness of forwards, by stage</th></tr>"
    )
    return "\n".join(['<table id="stages">', f"<thead>{head}</thead>", "<tbody>", *rows, "</tbody>", "</table>"])
