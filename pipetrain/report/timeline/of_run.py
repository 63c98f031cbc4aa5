"""The timeline of a run: what its operation lists foretell by its median times, above what was measured."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from pipetrain.program.playback import Slice, play
from pipetrain.program.steady_state import between_updates, peak_in_flight
from pipetrain.program.times import StageTimes
from pipetrain.report.text_table import text_table
from pipetrain.report.timeline.panels import Box, Panel, boxes, number, scaled
from pipetrain.report.timeline.trace_file import median_times
from pipetrain.report.timeline.traced_run import TracedInterval, traced_part
from pipetrain.schedules import Kind, Operation

_USUAL = 6
_MS = 1000.0
Rows = Sequence[Sequence[Slice]]


def timeline_of_run(run: Path, first: int | None, minibatches: int | None) -> tuple[list[Panel], list[str]]:
    """Two panels over the same minibatches, and what to print of them.

    Args:
        run: the run directory.
        first: a minibatch, counted from the start of the run; None: those in the middle of the first part between
            two drains.
        minibatches: how many, at most those up to the next drain; None: 6.

    Raises:
        ConfigError: `run` has no trace, or not of these minibatches, or it tells of other operations.
    """
    traced = traced_part(run, first)
    count = min(minibatches or _USUAL, traced.minibatches)
    begin = (traced.minibatches - count) // 2 if first is None else first - traced.start
    last = min(begin + count, traced.minibatches)
    rules = traced.rules
    times = median_times(traced.trace, rules.num_microbatches)
    foretold = play(rules.lists(traced.minibatches), times.duration, rules.segments, times.transfer)
    measured = [_slices(row, traced.start) for row in traced.trace.rows]
    chosen = [f"{group}={traced.names[group]}" for group in ("method", "schedule")]
    title = ", ".join([*chosen, f"D = {rules.num_stages}", f"N = {rules.num_microbatches}"])
    shown = f"minibatches {traced.start + begin} to {traced.start + last - 1}"
    rates = [_rate(rows, begin, last, traced.batch_size) for rows in (foretold, measured)]
    panels = [
        _foretold(traced, foretold, (f"{title}: the lists, played with median times, {shown}", rates[0])),
        _measured(traced, (f"Measured in {run.resolve().name}, {shown}", rates[1])),
    ]
    panels = [_cut(panel, rows, begin, last) for panel, rows in zip(panels, (foretold, measured), strict=True)]
    length = max(panel.end for panel in panels)
    lines = [f"{run}: {title}; {shown}", *_table(traced, times, foretold, measured, (begin, last))]
    return [replace(panel, end=length) for panel in panels], [
        *lines,
        f"the lists  {rates[0]}",
        f"measured   {rates[1]}",
    ]


def _slices(row: Sequence[Box], start: int) -> list[Slice]:
    """Boxes of the run as slices of the list, which counts from the drain."""
    return [
        Slice(
            Operation(box.operation.kind, box.operation.minibatch - start, box.operation.microbatch), box.start, box.end
        )
        for box in row
    ]


def _foretold(traced: TracedInterval, rows: Rows, words: tuple[str, str]) -> Panel:
    drawn = [
        scaled(boxes(row, traced.rules.planned(r, traced.minibatches, traced.start), traced.start), _MS)
        for r, row in enumerate(rows)
    ]
    return Panel(words[0], traced.rules.num_microbatches, "ms", drawn, 0.0, 0.0, facts=words[1:])


def _measured(traced: TracedInterval, words: tuple[str, str]) -> Panel:
    drawn, messages = ([scaled(row, _MS) for row in rows] for rows in (traced.trace.rows, traced.trace.messages))
    return Panel(words[0], traced.rules.num_microbatches, "ms", drawn, 0.0, 0.0, messages, words[1:])


def _cut(panel: Panel, rows: Rows, first: int, last: int) -> Panel:
    """From the first forward of minibatch `first` to the last update of `last` - 1."""
    begin = min(piece.start for piece in rows[0] if piece.operation.minibatch == first)
    end = max(piece.end for row in rows for piece in row if piece.operation.minibatch == last - 1)
    return panel.between(begin * _MS, end * _MS)


def _rate(rows: Rows, first: int, last: int, batch_size: int) -> str:
    seconds = sum(between_updates(row, first, last)[0] for row in rows) / len(rows)
    rate = (last - first) / seconds
    return f"{number(rate)} minibatches, {number(batch_size * rate)} samples per second"


def _table(
    traced: TracedInterval, times: StageTimes, foretold: Rows, measured: Rows, shown: tuple[int, int]
) -> list[str]:
    recomputes = any(piece.operation.kind is Kind.RECOMPUTATION for piece in measured[0])
    columns = {"F ms": times.forward, "R ms": times.recomputation, "B ms": times.backward, "U ms": times.update}
    if not recomputes:
        del columns["R ms"]
    rows = []
    for r, pair in enumerate(zip(foretold, measured, strict=True)):
        peaks = [str(peak_in_flight([p.operation for p in row], traced.rules.num_microbatches)) for row in pair]
        idle = [f"{between_updates(row, *shown)[1]:.1%}" for row in pair]
        rows.append((str(r), *(f"{values[r] * _MS:.2f}" for values in columns.values()), *peaks, *idle))
    heads = ("stage", *columns, "in flight: lists", "measured", "idle share: lists", "measured")
    return text_table(heads, rows, ">" * len(heads))
