"""What is kept of the runs of a sweep: their numbers in `runs.csv`, and the rest in the same order in `curves.json`."""

import csv
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from papers.series import in_series, listed
from pipetrain.data.files.strict_json import number
from pipetrain.reporting.sweep.columns import MEASUREMENTS, TIMINGS
from pipetrain.reporting.sweep.compared_run import TRAIN_LOSS, ComparedRun, Curve, Point
from pipetrain.reporting.sweep.groups import SweepGroup
from pipetrain.runner.config.messages import DIRECTIONS, PLAIN
from pipetrain.runner.terminal.text_table import csv_table
from pipetrain.runner.tracking.files import write_whole

RUNS, CURVES = "runs.csv", "curves.json"
ENDED = ("completed", "diverged")
"""Ends of a run that count as a result."""
Row = Mapping[str, str]
"""A run, by the columns of `runs.csv`."""
_SETTINGS = ("dataset", "method", "partition.stages", "optimizer.lr", "seed")
_NOT_LEARNED = {"perplexity", *MEASUREMENTS} - {"steps", "loss_steps", "message_bytes", "message_share"}
"""Numbers of a run that its loss tells as well, or its settings, or that are of time and memory."""
_DIGITS = 9
"""Enough significant digits to tell any two float32 values apart."""
_FORMAT = re.compile(rf"messages\.({'|'.join(DIRECTIONS)})\.(name|bits)")
_NAME, _STATUS, _BEST = "name", "status", "best_"


def row_of(name: str, run: ComparedRun, *, whole: bool = True) -> Mapping[str, Any]:
    """A row of `runs.csv`: the group's name, settings that identify the run, how it ended, and its numbers.

    If not `whole`, the settings alone identify it, and the numbers are those of what was learned, and of messages.
    """
    settings = {setting: run.settings.get(setting) for setting in (*_SETTINGS, *_formats_of(run))}
    if whole:
        return {_NAME: name, **settings, _STATUS: run.status, **run.values}
    numbers = {
        column: _short(value, _DIGITS)
        for column, value in {**run.final, **run.numbers}.items()
        if column not in _NOT_LEARNED
    }
    return {**settings, _STATUS: run.status, **numbers}


def _formats_of(run: ComparedRun) -> list[str]:
    """The settings that choose formats of messages; none if all messages are plain."""
    settings = [name for name in run.settings if _FORMAT.fullmatch(name)]
    return settings if any(run.settings[name] != PLAIN for name in settings if name.endswith(".name")) else []


def rows_in(path: Path) -> list[Row]:
    """The rows of a `runs.csv`; none if there is no such file."""
    if not path.is_file():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def ended_runs(paths: Iterable[Path]) -> list[Row]:
    """The rows of all these `runs.csv`, as far as they exist, of runs that completed or diverged."""
    return [row for path in paths for row in rows_in(path) if row[_STATUS] in ENDED]


def write_runs(folder: Path, groups: Sequence[SweepGroup], *, whole: bool = True) -> list[Path]:
    """Writes the files of some groups; returns them.

    Args:
        folder: which is there.
        groups: in the order in which they are read again.
        whole: False to keep the numbers of what was learned alone, and no curves.
    """
    files = {RUNS: csv_table([row_of(group.name, run, whole=whole) for group in groups for run in group.runs])}
    if whole:
        files[CURVES] = _curves_text([run for group in groups for run in group.runs])
    for name, text in files.items():
        write_whole(folder / name, text)
    return [folder / name for name in files]


def read_groups(folder: Path) -> list[SweepGroup]:
    """The groups that were written to a folder: the method and the seed are all that is known of their settings.

    Raises:
        OSError, ValueError, KeyError: a file is missing or damaged.
    """
    rows, path = rows_in(folder / RUNS), folder / CURVES
    content = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {"runs": [{}] * len(rows)}
    axes = [[listed(column) for column in axis] for axis in content.get("axes", ())]
    staleness = [listed(layers) for layers in content.get("staleness", ())]
    found: dict[str, list[ComparedRun]] = {}
    for row, more in zip(rows, content["runs"], strict=True):
        found.setdefault(row[_NAME], []).append(_run(row, more, axes, staleness))
    return [SweepGroup(name, runs) for name, runs in found.items()]


def untimed(run: ComparedRun) -> ComparedRun:
    """The run without times, neither as numbers nor as an axis of its curves."""
    return replace(
        run,
        numbers={name: value for name, value in run.numbers.items() if name not in TIMINGS},
        curves={
            name: [point._replace(seconds=None) for point in curve]
            for name, curve in run.curves.items()
            if name not in TIMINGS
        },
    )


def _run(
    row: Row,
    more: Mapping[str, Any],
    axes: Sequence[Sequence[Sequence[float | None]]],
    staleness: Sequence[Sequence[Any]],
) -> ComparedRun:
    values = {name: _value(text) for name, text in row.items() if text and name not in (*_SETTINGS, _NAME, _STATUS)}
    best = {name.removeprefix(_BEST): value for name, value in values.items() if name.startswith(_BEST)}
    final = {name: values[name] for name in best if name in values}
    seed = {"seed": int(row["seed"])} if row.get("seed") else {}
    return ComparedRun(
        path=Path(more.get("path", "")),
        status=row[_STATUS],
        reason=more.get("reason"),
        settings={"method": row.get("method", ""), **seed},
        final=final,
        best=best,
        numbers={name: value for name, value in values.items() if name not in final and not name.startswith(_BEST)},
        staleness=staleness[more["forward_staleness"]] if "forward_staleness" in more else (),
        curves={name: _curve(axes[axis], values) for name, (axis, values) in more.get("curves", {}).items()},
    )


def _value(text: str) -> float:
    try:
        return int(text)
    except ValueError:
        return float(text)


def _curve(axis: Sequence[Sequence[float | None]], values: Sequence[float | None]) -> Curve:
    unknown: Sequence[float | None] = [None] * len(values)
    epochs, steps, seconds = [*axis, unknown, unknown][:3]
    return [
        Point(
            float(number(epoch)),
            float(number(value)),
            None if step is None else int(step),
            None if elapsed is None else float(elapsed),
        )
        for epoch, value, step, elapsed in zip(epochs, values, steps, seconds, strict=True)
    ]


def _curves_text(runs: Iterable[ComparedRun]) -> str:
    """A line for each place where curves have points and for each staleness, which many share, and for each run."""
    axes, staleness = dict[str, int](), dict[str, int]()
    lines = []
    for run in runs:
        known: dict[str, Any] = {"path": str(run.path)}
        if run.reason:
            known["reason"] = run.reason
        if run.staleness:
            known["forward_staleness"] = _numbered(staleness, in_series(run.staleness))
        curves = {
            name: (_place(axes, curve), [_short(point.value, 4 if name == TRAIN_LOSS else 5) for point in curve])
            for name, curve in run.curves.items()
            if curve
        }
        lines.append(_dense(known | ({"curves": curves} if curves else {})))
    parts = {'{"axes":[': axes, '],"staleness":[': staleness, '],"runs":[': lines}
    return "".join(head + "\n" + ",\n".join(part) + "\n" for head, part in parts.items()) + "]}\n"


def _place(axes: dict[str, int], curve: Curve) -> int:
    """The number of the axis of a curve, its epochs, steps and seconds; a new one is added."""
    columns = [[_short(getattr(point, name)) for point in curve] for name in ("epoch", "step", "seconds")]
    while not any(value is not None for value in columns[-1]):
        columns.pop()
    return _numbered(axes, [in_series(column) for column in columns])


def _numbered(known: dict[str, int], content: Any) -> int:
    """The number of some content, which is added if it is new."""
    return known.setdefault(_dense(content), len(known))


def _short(value: float | None, digits: int = 5) -> float | None:
    """The value to as many digits as a figure shows; None if it is not finite."""
    if value is None or not math.isfinite(value):
        return None
    rounded = float(f"{value:.{digits}g}")
    return int(rounded) if rounded.is_integer() else rounded


def _dense(content: Any) -> str:
    return json.dumps(content, separators=(",", ":"))
