"""The runs of a sweep as tables: what they came to, and what it took."""

import shutil
from collections.abc import Callable, Sequence

from pipetrain.report.sweep.columns import TO_TARGET, cells, column_of, metric_of
from pipetrain.report.sweep.compared_run import ComparedRun
from pipetrain.report.sweep.groups import SweepGroup
from pipetrain.report.text_table import counted, markdown_table, shortened, text_table
from pipetrain.tracking.throughput import ALL_THROUGHPUTS, MEASURED, PREDICTED, in_tokens

Columns = list[tuple[str, ...]]
WIDTH = 120
_LEAST_NAME = 16
_MOST_STAGES = 8
_SPREAD = "±: sample standard deviation over seeds; a group without it has one run"
_SIMULATED = (
    "~: of the simulated pipeline, predicted from the measured times of its stages; wall time is the simulator's own"
)


def text(groups: Sequence[SweepGroup], metric: str | None) -> str:
    """Two tables below each other for the terminal, and what there is to say about them."""
    parts = [_text_table(columns) for columns in (_came_to(groups, metric), _took(groups))]
    return "\n\n".join([*parts, "\n".join(notes(groups))]).rstrip()


def markdown(groups: Sequence[SweepGroup], metric: str | None) -> str:
    """The same in Markdown."""
    tables = (_came_to(groups, metric), _took(groups))
    parts = ["\n".join(markdown_table([column[0] for column in columns], _rows(columns))) for columns in tables]
    return "\n\n".join([*parts, *(f"{note}  " for note in notes(groups))]) + "\n"


def notes(groups: Sequence[SweepGroup]) -> list[str]:
    """What the signs mean, and why runs did not complete."""
    said = [_SPREAD] if any(len(group.counted) > 1 for group in groups) else []
    said += [_SIMULATED] if any(_speed(group) == PREDICTED for group in groups) else []
    for group in groups:
        ended = [run for run in group.runs if run.status != "completed"]
        said += [f"{run.path}: {_ending(run)}" for run in ended]
    return said


def _ending(run: ComparedRun) -> str:
    reason = run.reason or run.status
    return reason if reason.startswith(run.status) else f"{run.status}: {reason}"


def _came_to(groups: Sequence[SweepGroup], metric: str | None) -> Columns:
    evaluated = metric_of(groups, metric)
    own = [metric, evaluated, f"best_{evaluated}"]
    named = dict.fromkeys([*(name for name in own if name), *TO_TARGET, "wall_s"])
    aims = any(run.aims for group in groups for run in group.runs)
    shown = [name for name in named if any(group.values(name) for group in groups) or (aims and name == "target_s")]
    columns = [("", *(group.name for group in groups))]
    columns += [(column_of(name).head, *_cells(groups, name)) for name in shown]
    if metric not in ALL_THROUGHPUTS:
        at = len(columns) - ("wall_s" in shown)
        columns[at:at] = _speed_columns(groups)
    return [*columns, ("runs", *map(statuses, groups))]


def _took(groups: Sequence[SweepGroup]) -> Columns:
    named = ("idle_share", "weight_bytes", "copies", "activation_bytes", "memory_bytes")
    columns = [(column_of(name).head, *cells(groups, name)) for name in named]
    names = ("", *(group.name for group in groups))
    return [names, *columns, ("staleness of F by stage", *map(_staleness, groups))]


def _cells(groups: Sequence[SweepGroup], name: str) -> list[str]:
    """The cells of a column; those of the time to a target also say how many runs reached it, where others did not."""
    found = cells(groups, name)
    if name not in TO_TARGET:
        return found
    counts = [(len(group.values(name)), len(group.counted)) for group in groups]
    return [f"{cell} ({n} of {m})" if 0 < n < m else cell for cell, (n, m) in zip(found, counts, strict=True)]


def _speed(group: SweepGroup) -> str | None:
    """Which throughput a group has: its own, or where it was simulated the pipeline's."""
    return next((name for name in (MEASURED, PREDICTED) if group.values(name)), None)


def _speed_columns(groups: Sequence[SweepGroup]) -> Columns:
    """Throughput in tokens where all groups count them, else in samples, and in tokens beside it where any does."""
    of_tokens = [any(group.values(in_tokens(name)) for name in (MEASURED, PREDICTED)) for group in groups]
    tokens = [("tokens/s", *_speeds(groups, in_tokens))] if any(of_tokens) else []
    return tokens if tokens and all(of_tokens) else [("samples/s", *_speeds(groups, str)), *tokens]


def _speeds(groups: Sequence[SweepGroup], named: Callable[[str], str]) -> list[str]:
    own = {name: cells(groups, named(name)) for name in (MEASURED, PREDICTED)}
    signs = {MEASURED: "", PREDICTED: "~"}
    found = [(name, own[name][index]) for index, group in enumerate(groups) if (name := _speed(group) or MEASURED)]
    return ["-" if cell == "-" else f"{signs[name]}{cell}" for name, cell in found]


def statuses(group: SweepGroup) -> str:
    """How many runs there are; where some did not complete, how many ended how."""
    found = group.statuses
    if list(found) == ["completed"]:
        return str(len(group.runs))
    return ", ".join(f"{count} {status}" for status, count in sorted(found.items()))


def _staleness(group: SweepGroup) -> str:
    values = group.staleness
    if len(values) > _MOST_STAGES:
        more = counted(len(values) - 4, "stage", "stages")
        return f"{values[0]} {values[1]} ... {more} ... {values[-2]} {values[-1]}"
    return " ".join(map(str, values)) or "-"


def _rows(columns: Columns) -> list[tuple[str, ...]]:
    return list(zip(*(column[1:] for column in columns), strict=True))


def _text_table(columns: Columns) -> str:
    """The lines of a table that is as wide as the terminal, or 120 columns; its names give way."""
    columns_left = max(WIDTH, shutil.get_terminal_size((WIDTH, 24)).columns)
    others = sum(2 + max(map(len, column)) for column in columns[1:])
    names = [shortened(name, max(_LEAST_NAME, columns_left - others)) for name in columns[0]]
    table = [tuple(names), *columns[1:]]
    heads = [column[0] for column in table]
    return "\n".join(text_table(heads, _rows(table), "<" + ">" * (len(heads) - 2) + "<"))
