"""The timeline of a run: its operation lists, played with its median times, above what was measured."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pipetrain.program.playback import Slice, play
from pipetrain.program.steady_state import between_updates, peak_in_flight
from pipetrain.program.times import StageTimes
from pipetrain.report.text_table import text_table
from pipetrain.report.timeline.panels import Box, Panel, boxes, number, scaled
from pipetrain.report.timeline.trace_file import median_times
from pipetrain.report.timeline.traced_run import TracedInterval, traced_interval
from pipetrain.schedules import Kind, Operation

_USUAL = 6
_MS = 1000.0
Rows = Sequence[Sequence[Slice]]


def timeline_of_run(
    run: Path, first: int | None, minibatches: int | None, *, trust: bool
) -> tuple[list[Panel], list[str]]:
    """Two panels over the same minibatches, and what to print of them.

    Args:
        run: the run directory.
        first: a minibatch, counted from the start of the run; None: those in the middle of the first part between
            two drains.
        minibatches: how many, at most those up to the next drain; None: 6.
        trust: whether to call schedules and methods that are not pipetrain's own.

    Raises:
        ConfigError: `run` has no trace, or one of other minibatches or other operations.
    """
    traced = traced_interval(run, first, trust=trust)
    count = min(minibatches or _USUAL, traced.minibatches)
    begin = (traced.minibatches - count) // 2 if first is None else first - traced.start
    pair = TimelinePair.of(traced, begin, min(begin + count, traced.minibatches))
    return pair.panels(run.resolve().name), [f"{run}: {pair.title}; {pair.shown}", *pair.lines()]


@dataclass(frozen=True)
class TimelinePair:
    """A drain interval twice, its slices by stage in seconds: as its lists play, and as it was measured.

    Attributes:
        traced: the interval.
        times: the median times by which its lists are played.
        lists, measured: the slices; their minibatches count from the drain.
        first, last: the minibatches to show, `last` exclusive, counted from the drain.
    """

    traced: TracedInterval
    times: StageTimes
    lists: Rows
    measured: Rows
    first: int
    last: int

    @staticmethod
    def of(traced: TracedInterval, first: int, last: int) -> "TimelinePair":
        """Plays the lists of an interval that was traced."""
        rules = traced.rules
        times = median_times(traced.trace, rules.num_microbatches)
        played = rules.lists(traced.minibatches)
        lists = play(played, times.duration, rules.segments, times.transfer, replicas=rules.replicas)
        measured = [_slices(row, traced.start) for row in traced.trace.rows]
        return TimelinePair(traced, times, lists, measured, first, last)

    @property
    def title(self) -> str:
        """Method, schedule, D and N of what was run."""
        rules, names = self.traced.rules, self.traced.names
        chosen = [f"{group}={names[group]}" for group in ("method", "schedule")]
        return ", ".join([*chosen, f"D = {rules.num_stages}", f"N = {rules.num_microbatches}"])

    @property
    def shown(self) -> str:
        """Which minibatches are drawn, counted from the start of the run."""
        return f"minibatches {self.traced.start + self.first} to {self.traced.start + self.last - 1}"

    def panels(self, run: str) -> list[Panel]:
        """The panel of the lists and that of the measurements, over the same length of time."""
        rules, start = self.traced.rules, self.traced.start
        expected = [
            list(boxes(row, rules.planned(w, self.traced.minibatches, start), start, rules.replicas.counts[r]))
            for w, (row, (r, _)) in enumerate(zip(self.lists, rules.replicas.places, strict=True))
        ]
        trace = self.traced.trace
        upper = self._panel(f"{self.title}: the lists, played with median times, {self.shown}", expected, self.lists)
        lower = self._panel(f"Measured in {run}, {self.shown}", trace.rows, self.measured)
        lower = replace(lower, messages=[scaled(row, _MS) for row in trace.messages])
        shown = [self._cut(upper, self.lists), self._cut(lower, self.measured)]
        length = max(panel.end for panel in shown)
        return [replace(panel, end=length) for panel in shown]

    def lines(self) -> list[str]:
        """The table of the stages, and both rates."""
        rates = [f"predicted  {self._rate(self.lists)}", f"measured   {self._rate(self.measured)}"]
        return [*self._table(), *rates]

    def _panel(self, title: str, rows: Sequence[Sequence[Box]], slices: Rows) -> Panel:
        in_ms = [scaled(row, _MS) for row in rows]
        rules, facts = self.traced.rules, (self._rate(slices),)
        return Panel(title, rules.num_microbatches, "ms", in_ms, 0.0, 0.0, facts=facts, replicas=rules.replicas)

    def _cut(self, panel: Panel, rows: Rows) -> Panel:
        """From the first forward of the first minibatch shown to the last update of the last."""
        begin = min(piece.start for row in rows for piece in row if piece.operation.minibatch == self.first)
        end = max(piece.end for row in rows for piece in row if piece.operation.minibatch == self.last - 1)
        return panel.between(begin * _MS, end * _MS)

    def _rate(self, rows: Rows) -> str:
        seconds = sum(between_updates(row, self.first, self.last)[0] for row in rows) / len(rows)
        rate = (self.last - self.first) / seconds
        return f"{number(rate)} minibatches/s, {number(self.traced.batch_size * rate)} samples/s"

    def _table(self) -> list[str]:
        times = self.times
        columns = {"F ms": times.forward, "R ms": times.recomputation, "B ms": times.backward, "U ms": times.update}
        if not any(piece.operation.kind is Kind.RECOMPUTATION for piece in self.measured[0]):
            del columns["R ms"]
        rows = [
            (label, *(f"{values[r] * _MS:.2f}" for values in columns.values()), *self._held_and_idle(r))
            for r, label in enumerate(self.traced.rules.replicas.labels)
        ]
        heads = ("stage", *columns, "in flight: predicted", "measured", "idle share: predicted", "measured")
        return text_table(heads, rows, ">" * len(heads))

    def _held_and_idle(self, r: int) -> list[str]:
        """Most microbatches in flight on a stage, by the lists and measured, then its idle shares likewise."""
        num_microbatches, both = self.traced.rules.num_microbatches, (self.lists[r], self.measured[r])
        held = [str(peak_in_flight([piece.operation for piece in row], num_microbatches)) for row in both]
        return held + [f"{between_updates(row, self.first, self.last)[1]:.1%}" for row in both]


def _slices(row: Sequence[Box], start: int) -> list[Slice]:
    """Boxes of the run as slices of the list, which counts from the drain."""
    return [
        Slice(
            Operation(box.operation.kind, box.operation.minibatch - start, box.operation.microbatch), box.start, box.end
        )
        for box in row
    ]
