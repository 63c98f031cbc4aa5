"""The runs of a sweep as one self-contained HTML file, to look at in a browser."""

from collections.abc import Sequence
from html import escape
from pathlib import Path
from string import Template

from pipetrain.report.sweep.colors import Look, looks
from pipetrain.report.sweep.columns import TO_TARGET, cells, column_of, metric_of
from pipetrain.report.sweep.course import course
from pipetrain.report.sweep.groups import SweepGroup
from pipetrain.report.sweep.stage_bars import memory_bars, staleness_bars
from pipetrain.report.sweep.table import notes, statuses
from pipetrain.report.text_table import counted
from pipetrain.tracking.throughput import ALL_THROUGHPUTS, MEASURED, PREDICTED, in_tokens

_TEMPLATE = Path(__file__).with_name("page.html")
_SPEEDS = (MEASURED, PREDICTED, in_tokens(MEASURED), in_tokens(PREDICTED))
_TOOK = ("wall_s", "idle_share", "weight_bytes", "activation_bytes", "memory_bytes", "copies")


def page(title: str, metric: str | None, groups: Sequence[SweepGroup]) -> str:
    """The document: a table that can be sorted, the courses of all metrics, and what every stage holds."""
    runs = sum(len(group.runs) for group in groups)
    parts = {
        "TITLE": escape(title),
        "COUNT": f"{counted(runs, 'run', 'runs')} of {counted(len(groups), 'configuration', 'configurations')}",
        "TABLE": _table(metric, groups),
        "NOTES": "\n".join(f"<p>{escape(note.replace('~:', 'predicted:'))}</p>" for note in notes(groups)),
        "COURSES": "\n".join(_courses(metric, groups)),
        "STAGES": _stages(groups),
    }
    return Template(_TEMPLATE.read_text(encoding="utf-8")).substitute(parts)


def columns_of(metric: str | None, groups: Sequence[SweepGroup]) -> list[str]:
    """The columns that any group has: first what the runs came to, then what it took."""
    evaluated = metric_of(groups, metric)
    named = [metric, evaluated, f"best_{evaluated}", *TO_TARGET, *_SPEEDS, *_TOOK]
    return [name for name in dict.fromkeys(named) if name and any(group.values(name) for group in groups)]


def _table(metric: str | None, groups: Sequence[SweepGroup]) -> str:
    names = columns_of(metric, groups)
    heads = [_head(name, ranked=name == metric) for name in names]
    shown = list(zip(*(cells(groups, name) for name in names), strict=True)) or [()] * len(groups)
    rows = []
    for index, (group, look, texts) in enumerate(zip(groups, looks(groups), shown, strict=True)):
        numbers = [
            f'<td data-value="{_value(group.mean(name))}">{escape(text)}</td>'
            for name, text in zip(names, texts, strict=True)
        ]
        ended = escape(statuses(group))
        rows.append(
            f'<tr data-group="{index}"><th scope="row">{_swatch(look)}{escape(group.name)}</th>'
            f'{"".join(numbers)}<td data-value="{len(group.completed)}">{ended}</td></tr>'
        )
    head = f'<tr><th scope="col">run</th>{"".join(heads)}<th scope="col" data-higher="1">runs</th></tr>'
    return "\n".join(['<table id="runs">', f"<thead>{head}</thead>", "<tbody>", *rows, "</tbody>", "</table>"])


def _head(name: str, *, ranked: bool) -> str:
    column = column_of(name)
    order = f' aria-sort="{"descending" if column.higher else "ascending"}"' if ranked else ""
    return f'<th scope="col" data-higher="{int(column.higher)}"{order}>{escape(column.head)}</th>'


def _value(mean: float | None) -> str:
    return "" if mean is None else repr(mean)


def _swatch(look: Look) -> str:
    return f'<i style="background:{look.color}"></i>'


def _courses(metric: str | None, groups: Sequence[SweepGroup]) -> list[str]:
    """A figure for each metric and throughput that has a course; the one that ranks is first."""
    found = dict.fromkeys(name for group in groups for run in group.counted for name in run.curves)
    order = sorted(found, key=lambda name: (name != metric, name in ALL_THROUGHPUTS))
    return [course(name, groups) for name in order]


def _stages(groups: Sequence[SweepGroup]) -> str:
    """A row for each group: memory and staleness of its stages as bars."""
    rows = [
        f'<tr data-group="{index}"><th scope="row">{_swatch(look)}{escape(group.name)}</th>'
        f"<td>{memory}</td><td>{staleness}</td></tr>"
        for index, (group, look, memory, staleness) in enumerate(
            zip(groups, looks(groups), memory_bars(groups), staleness_bars(groups), strict=True)
        )
    ]
    head = (
        "<tr><th>run</th><th>memory of each stage: weights, and pale the activations</th>"
        "<th>staleness of forwards, by stage</th></tr>"
    )
    return "\n".join(['<table id="stages">', f"<thead>{head}</thead>", "<tbody>", *rows, "</tbody>", "</table>"])
