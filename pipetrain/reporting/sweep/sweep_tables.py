"""Tables of the results and costs of runs, as text and Markdown."""

import math
import shutil
import textwrap
from collections.abc import Callable, Hashable, Sequence

from pipetrain.reporting.from_the_best import differences_from_best
from pipetrain.reporting.seed_statistics import Interval
from pipetrain.reporting.sweep.columns import (
    PREDICTED_STAGE,
    PREDICTED_STEP,
    TO_TARGET,
    cells,
    column_of,
    decimals_of,
    metric_of,
)
from pipetrain.reporting.sweep.comparison import ComparedGroups
from pipetrain.reporting.sweep.groups import SweepGroup, labels_of, legend_of
from pipetrain.reporting.sweep.slowdown import notes_on, table_of
from pipetrain.runner.terminal.text_table import counted, markdown_table, markdown_text, printable, text_table
from pipetrain.runner.tracking.throughput import ALL_THROUGHPUTS, MEASURED, PREDICTED, in_tokens

Columns = Sequence[tuple[str, ...]]
WIDTH = 120
_LEAST_WIDTH = 72
_MOST_STAGES = 8
_RUNS, _STALENESS = "runs", "staleness of F by stage"
_LEFT = (_RUNS, _STALENESS)
"""Columns of words."""
_SPREAD = "±: sample standard deviation over seeds; a row without it has one seed"
_SIMULATED = (
    "~: of the simulated pipeline, predicted from the measured times of its stages; wall time is the simulator's own"
)


def text(compared: ComparedGroups) -> str:
    """Sentences, tables and notes for the terminal."""
    width = max(_LEAST_WIDTH, shutil.get_terminal_size((WIDTH, 24)).columns)
    groups = compared.groups
    tables = [_text_table(part) for columns in _tables(compared) for part in _parts(columns, width)]
    for each in compared.slowdowns:
        parts = [_text_table(part) for part in _parts(table_of(each, groups), width)]
        tables += [f"{_wrapped('', each.heading, width)}\n{parts[0]}", *parts[1:]]
    lines = [*(_wrapped("", note, width) for note in notes(compared)), *not_completed(compared)]
    heads = (_wrapped("", printable(head), width) for head in compared.heads)
    return "\n\n".join(filter(None, [*heads, *tables, _legend(groups, width), "\n".join(lines)]))


def markdown(compared: ComparedGroups) -> str:
    """The same in Markdown."""
    groups = compared.groups
    titled = [(markdown_text(each.heading) + ":", table_of(each, groups)) for each in compared.slowdowns]
    columns = [*(("", each) for each in _tables(compared)), *titled, ("", legend_of(groups))]
    tables = [text for title, each in columns if each for text in (title, _markdown_table(each)) if text]
    lines = [f"{markdown_text(note)}  " for note in (*notes(compared), *not_completed(compared))]
    return "\n\n".join([*map(markdown_text, compared.heads), *tables, *lines]) + "\n"


def _markdown_table(columns: Columns) -> str:
    heads, *rows = (tuple(map(markdown_text, row)) for row in zip(*columns, strict=True))
    return "\n".join(markdown_table(heads, rows))


def notes(compared: ComparedGroups) -> list[str]:
    """Explanations of the signs in the tables."""
    groups, metric = compared.groups, compared.metric
    found = [_SPREAD] if any(len(group.counted) > 1 for group in groups) else []
    found += [_SIMULATED] if any(_speed(group) == PREDICTED for group in groups) else []
    found += [_FROM_BEST_NOTE] if difference_cells(groups, metric) else []
    found += notes_on(compared.slowdowns)
    mixed = [label for label, group in zip(labels_of(groups), groups, strict=True) if len(group.commits) > 1]
    found += [f"runs of several commits: {', '.join(mixed)}; --by commit tells them apart"] if mixed else []
    return [*found, *map(printable, compared.remarks)]


def not_completed(compared: ComparedGroups) -> list[str]:
    """A line for each run that did not complete, or that was skipped, with the reason."""
    lines = []
    for run in (run for group in compared.groups for run in group.runs if run.status != "completed"):
        reason = run.reason or run.status
        lines.append(f"{run.path}: {reason if reason.startswith(run.status) else f'{run.status}: {reason}'}")
    lines += [f"{run.path}: skipped, as it is damaged: {run.reason}" for run in compared.skipped]
    return list(map(printable, lines))


def _tables(compared: ComparedGroups) -> list[Columns]:
    groups = compared.groups
    if not groups:
        return []
    costs = ["idle_share", "weight_bytes", "copies", "activation_bytes", "memory_bytes"]
    costs += [name for name in ("message_bytes", "message_share") if any(name in group.columns for group in groups)]
    costs += [PREDICTED_STAGE] if any(PREDICTED_STAGE in group.columns for group in groups) else []
    columns = [("", *labels_of(groups)), *((column_of(name).head, *cells(groups, name)) for name in costs)]
    return [_results(compared), [*columns, (_STALENESS, *map(_staleness, groups))]]


def _results(compared: ComparedGroups) -> Columns:
    groups, metric = compared.groups, compared.metric
    evaluated = metric_of(groups, compared.shown)
    known = {name for group in groups for name in group.columns}
    known |= {"target_s"} if any(run.aims for group in groups for run in group.runs) else set()
    names = dict.fromkeys([metric or evaluated, evaluated, f"best_{evaluated}", *TO_TARGET])
    results = [(column_of(name).head, *_cells(groups, name)) for name in names if name in known]
    if behind := difference_cells(groups, metric):
        results.insert(1, (FROM_BEST, *behind))
    speeds = [] if metric in ALL_THROUGHPUTS else _speed_columns(groups)
    times = [name for name in (PREDICTED_STEP, "wall_s") if name in known - {metric}]
    columns = [*results, *speeds, *((column_of(name).head, *_cells(groups, name)) for name in times)]
    return [("", *labels_of(groups)), *columns, (_RUNS, *map(statuses, groups))]


def _cells(groups: Sequence[SweepGroup], name: str) -> list[str]:
    """The cells of a column, with the number of runs that have a finite value unless all have one."""
    found = cells(groups, name)
    counts = [(len(group.values(name)), len(group.counted)) for group in groups]
    return [f"{cell} ({n} of {m})" if 0 < n < m else cell for cell, (n, m) in zip(found, counts, strict=True)]


def _speed(group: SweepGroup) -> str | None:
    """Name of the group's throughput: measured, or, of a simulation, predicted."""
    return next((name for name in (MEASURED, PREDICTED) if group.values(name)), None)


def _speed_columns(groups: Sequence[SweepGroup]) -> Columns:
    """Throughput in tokens if all groups count them, else in samples, followed by tokens if any group does."""
    of_tokens = [any(group.values(in_tokens(name)) for name in (MEASURED, PREDICTED)) for group in groups]
    tokens = [("tokens/s", *_speeds(groups, in_tokens))] if any(of_tokens) else []
    return tokens if tokens and all(of_tokens) else [("samples/s", *_speeds(groups, str)), *tokens]


def _speeds(groups: Sequence[SweepGroup], named: Callable[[str], str]) -> list[str]:
    by_name = {name: cells(groups, named(name)) for name in (MEASURED, PREDICTED)}
    names = [_speed(group) or MEASURED for group in groups]
    found = [(name, by_name[name][index]) for index, name in enumerate(names)]
    return [f"~{cell}" if name == PREDICTED and cell != "-" else cell for name, cell in found]


def statuses(group: SweepGroup) -> str:
    """Number of runs, by status if some did not complete, and of seeds if these are fewer."""
    found, runs = group.statuses, len(group.runs)
    seeds = len({run.seeds for run in group.runs})
    ended = [f"{count} {status}" for status, count in sorted(found.items())]
    if list(found) == ["completed"]:
        ended = [str(runs) if seeds == runs else counted(runs, "run", "runs")]
    return ", ".join([*ended, *([] if seeds == runs else [counted(seeds, "seed", "seeds")])])


def _staleness(group: SweepGroup) -> str:
    values = group.staleness
    if len(values) > _MOST_STAGES:
        more = counted(len(values) - 4, "stage", "stages")
        return f"{values[0]} {values[1]} ... {more} ... {values[-2]} {values[-1]}"
    return " ".join(map(str, values)) or "-"


def _heads_and_rows(columns: Columns) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """The heads of the columns, and the rows below."""
    rows = list(zip(*columns, strict=True))
    return rows[0], rows[1:]


def _parts(columns: Columns, width: int) -> Sequence[Columns]:
    """The columns in tables that are at most so wide; each begins with the names of the rows."""
    names, *others = columns
    parts: list[list[tuple[str, ...]]] = [[names]]
    for column in others:
        wide = sum(2 + max(map(len, each)) for each in [*parts[-1], column]) - 2
        if wide > width and len(parts[-1]) > 1:
            parts.append([names])
        parts[-1].append(column)
    return parts


def _text_table(columns: Columns) -> str:
    heads, rows = _heads_and_rows(columns)
    last = "<" if heads[-1] in _LEFT else ">"
    return "\n".join(text_table(heads, rows, "<" + ">" * (len(heads) - 2) + last))


def _legend(groups: Sequence[SweepGroup], width: int) -> str:
    """The meaning of row numbers: a table of the settings that differ, or a list of names if it is too wide."""
    if not (columns := legend_of(groups)):
        return ""
    lines = text_table(*_heads_and_rows(columns), ">" + "<" * (len(columns) - 1))
    if max(map(len, lines)) <= width:
        return "\n".join(lines)
    digits = len(str(len(groups)))
    lines = [_wrapped(f"{number:>{digits}}  ", group.name, width) for number, group in enumerate(groups, start=1)]
    return "\n".join(lines)


def _wrapped(lead: str, text: str, width: int) -> str:
    """The text wrapped at a width; a longer word, such as a path, gets its own line."""
    indent = " " * len(lead)
    lines = textwrap.wrap(lead + text, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
    return "\n".join(lines)


FROM_BEST = "from the best"
_FROM_BEST_NOTE = (
    "from the best: difference to the first row, with its 95 % confidence interval (seed by seed where both rows have "
    "the same; all intervals hold together, though the first row was chosen by these values); undecided: the interval "
    "includes 0, or a row has a single seed; a row in which a run diverged, or has no value, has none"
)


def differences(groups: Sequence[SweepGroup], metric: str | None) -> list[Interval | None]:
    """The mean of each group minus the first group's; None for the first and for groups that cannot be compared.

    Without a run that diverged, or that missed the target, a group would look better than it is.
    """
    if metric is None or not groups:
        return [None] * len(groups)
    known = [_of_every_seed(group, metric) for group in groups]
    compared = [number for number, own in enumerate(known) if number and own and known[0]]
    found = dict(zip(compared, differences_from_best(known[0], [known[number] for number in compared]), strict=True))
    return [found.get(number) for number in range(len(groups))]


def _of_every_seed(group: SweepGroup, metric: str) -> dict[Hashable, float]:
    """The values of a completed group by seed; empty if a seed's run diverged or has none."""
    values = group.by_seed(metric)
    return values if group.completed and len(values) == len(group.ended) else {}


def difference_cells(groups: Sequence[SweepGroup], metric: str | None) -> list[str]:
    """The column of the table; empty if no row can be compared with the first."""
    found = differences(groups, metric)
    if metric is None or not any(found):
        return []
    decimals = decimals_of(groups, metric)
    text = column_of(metric).text or f"{{:.{decimals}f}}".format
    return ["-" if each is None else _difference(each, text) for each in found]


def _difference(interval: Interval, text: Callable[[float], str]) -> str:
    sign = "-" if interval.middle < 0 else "+"
    spread = "" if math.isinf(interval.half) else f" ± {text(interval.half)}"
    return f"{sign}{text(abs(interval.middle))}{spread}{'' if interval.decided else ' undecided'}"
