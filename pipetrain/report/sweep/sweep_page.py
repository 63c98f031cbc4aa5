"""The runs of a sweep as one self-contained HTML file, to look at in a browser."""

from collections.abc import Sequence
from html import escape
from pathlib import Path
from string import Template

from pipetrain.report.style import GRAY
from pipetrain.report.sweep.columns import TO_TARGET, cells, column_of, metric_of
from pipetrain.report.sweep.compared_run import ComparedRun
from pipetrain.report.sweep.groups import SweepGroup, labels_of, legend_of
from pipetrain.report.sweep.lines import LineStyle, group_styles
from pipetrain.report.sweep.sweep_figure import course_width, courses_of, heading, metric_curve_svg
from pipetrain.report.sweep.sweep_tables import FROM_BEST, difference_cells, differences, not_completed, notes, statuses
from pipetrain.report.text_table import counted, size_of
from pipetrain.tracking.throughput import MEASURED, PREDICTED, in_tokens

_TEMPLATE = Path(__file__).with_name("sweep_page.html")
_SPEEDS = (MEASURED, PREDICTED, in_tokens(MEASURED), in_tokens(PREDICTED))
_PIXELS = 96
"""Pixels of an inch in browsers."""
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
        f"{metric_curve_svg(name, axis, groups)}</figure>"
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


_HEIGHT, _NUMBER = 40.0, 12.0
_WIDEST_BAR, _MOST_WIDTH = 34.0, 420.0
_NUMBERED = 16
"""Stages at most whose bars have their number above them."""


def memory_bars(groups: Sequence[SweepGroup]) -> list[str]:
    """Peak bytes of each stage: weights, all their versions, and on them activations; one scale for all groups."""
    held = [(group.by_stage("weight_bytes_peak"), group.by_stage("activation_bytes_peak")) for group in groups]
    most = max((sum(stage) for each in held for stage in zip(*each, strict=False)), default=0.0)
    found = []
    for (weights, activations), look in zip(held, group_styles(groups), strict=True):
        said = [f"stage {r}: {size_of(w)} of weights, {size_of(a)} of activations"
                for r, (w, a) in enumerate(zip(weights, activations, strict=False))]  # fmt: skip
        numbers = [size_of(w + a) for w, a in zip(weights, activations, strict=False)]
        found.append(_bars([weights, activations], most, look.color, said, numbers))
    return found


def staleness_bars(groups: Sequence[SweepGroup]) -> list[str]:
    """Updates between the weights that a forward reads and its own update, of each stage the most that was seen."""
    most = max((late for group in groups for late in group.staleness), default=0)
    found = []
    for group, look in zip(groups, group_styles(groups), strict=True):
        said = [f"stage {r}: {late} updates late" for r, late in enumerate(group.staleness)]
        found.append(_bars([group.staleness], most, look.color, said, [str(late) for late in group.staleness]))
    return found


def _bars(
    layers: Sequence[Sequence[float]], most: float, color: str, said: Sequence[str], numbers: Sequence[str]
) -> str:
    if not said:
        return "-"
    step = min(_WIDEST_BAR if max(map(len, numbers)) < 4 else 1.9 * _WIDEST_BAR, _MOST_WIDTH / len(said))
    pixels = _HEIGHT / most if most else 0.0
    parts = []
    for stage, text in enumerate(said):
        x, y, bars = stage * step, _NUMBER + _HEIGHT, ""
        for layer, opacity in zip(layers, (1, 0.35), strict=False):
            height = pixels * layer[stage]
            y -= height
            bars += (
                f'<rect x="{x + 1:.1f}" y="{y:.1f}" width="{max(0.5, step - 2):.1f}" height="{height:.1f}" '
                f'fill="{color}" opacity="{opacity}"/>'
            )
        number = f'<text x="{x + step / 2:.1f}" y="{y - 2:.1f}" text-anchor="middle">{numbers[stage]}</text>'
        parts.append(f"<g><title>{text}</title>{bars}{number if len(said) <= _NUMBERED else ''}</g>")
    width, height = step * len(said), _NUMBER + _HEIGHT + 1
    ground = f'<line x1="0" x2="{width:.1f}" y1="{height - 0.5:g}" y2="{height - 0.5:g}" stroke="{GRAY}"/>'
    size = f'width="{width:.0f}" height="{height:.0f}" viewBox="0 0 {width:.1f} {height:.1f}"'
    return f'<svg class="bars" {size}>{"".join(parts)}{ground}</svg>'
