"""A timeline of what a run did, next to the prediction from its operation lists."""

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pipetrain.config.phases import PhaseSettings
from pipetrain.config.settings import Settings
from pipetrain.errors import ConfigError
from pipetrain.executors.pipeline_rules import PipelineRules
from pipetrain.program.drain_interval import DrainInterval
from pipetrain.program.playback import Slice, play
from pipetrain.program.steady_state import between_updates, peak_in_flight
from pipetrain.program.times import StageTimes
from pipetrain.report.text_table import text_table
from pipetrain.report.timeline.panels import Box, Panel, boxes, number, scaled
from pipetrain.report.timeline.trace_file import Trace, median_times, read_trace
from pipetrain.run.builders.pipeline import build_recompute_segments, build_rules
from pipetrain.schedules import Kind, Operation
from pipetrain.tracking.run_directory import RunDirectory
from pipetrain.tracking.stored_settings import stored_settings

_CALLED = ("schedule", "method", "phases")


@dataclass(frozen=True)
class TracedInterval:
    """Operations of a run between two drains.

    Attributes:
        rules: what it followed.
        start: minibatches of the run before it.
        minibatches: how many it has.
        trace: of these minibatches.
        batch_size: samples of a minibatch.
        names: of method and schedule on the command line.
    """

    rules: PipelineRules
    start: int
    minibatches: int
    trace: Trace
    batch_size: int
    names: Mapping[str, str]


def traced_interval(run: Path, minibatch: int | None, *, trust: bool) -> TracedInterval:
    """The drain interval that `minibatch`, counted from the start of the run, is in; None: the first one traced.

    Args:
        run: the run directory.
        minibatch: one of the interval.
        trust: True to call schedules and methods that are not pipetrain's own.

    Raises:
        ConfigError: `run` has no trace, or not of that minibatch, or one of other operations than its lists; or its
            schedule or method is not pipetrain's own.
    """
    directory = RunDirectory(run)
    settings = stored_settings(directory, _CALLED, trust=trust)
    if not directory.trace.is_file():
        raise ConfigError(f"{run}: has no {directory.trace.name}; only runs with trace=true write one, when they end")
    plan = json.loads(directory.plan.read_text())["stages"]
    workers = _rules(settings, settings.phases[0], plan).replicas.num_workers  # the same in all phases
    trace = read_trace(directory.trace, workers)
    interval = _interval(directory.trace, trace, minibatch)
    phase = settings.phases[interval.phase]
    traced = TracedInterval(
        _rules(settings, phase, plan),
        interval.start,
        interval.minibatches,
        trace.of_minibatches(interval.start, interval.start + interval.minibatches),
        settings.train.batch_size,
        phase.choices,
    )
    _check(directory.trace, traced)
    return traced


def _interval(path: Path, trace: Trace, minibatch: int | None) -> DrainInterval:
    for interval in trace.intervals:
        if minibatch is None or interval.start <= minibatch < interval.start + interval.minibatches:
            return interval
    if not trace.intervals:
        raise ConfigError(f"{path}: holds no complete minibatch; the run ended before its first drain")
    first, last = trace.intervals[0], trace.intervals[-1]
    end = last.start + last.minibatches - 1
    raise ConfigError(f"--from {minibatch}: {path} is of minibatches {first.start} to {end}")


def _rules(settings: Settings, phase: PhaseSettings, plan: Sequence[Mapping[str, Any]]) -> PipelineRules:
    stage_of = {stage["first"]: r for r, stage in enumerate(plan) if stage["first"] < stage["last"]}
    segments = build_recompute_segments(settings.train, len(plan), stage_of)
    return build_rules(phase, len(plan), settings.train.microbatches, segments, settings.replicas)


def _check(path: Path, traced: TracedInterval) -> None:
    for r, row in enumerate(traced.trace.rows):
        planned = traced.rules.planned(r, traced.minibatches, traced.start)
        untimed = [Slice(each.operation, 0.0, 0.0) for each in planned]
        expected = [box.name for box in boxes(untimed, planned, traced.start)]
        name = traced.rules.replicas.name(r)
        for here, there in itertools.zip_longest(expected, [box.name for box in row]):
            if here != there:
                raise ConfigError(
                    f"{path}: {name} has {there or 'nothing'} where the schedule and method in config.yaml "
                    f"say {here or 'nothing'}; the trace is of another run, or of one that did not end"
                )


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
        trust: True to call schedules and methods that are not pipetrain's own.

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
        """The minibatches drawn, counted from the start of the run."""
        return f"minibatches {self.traced.start + self.first} to {self.traced.start + self.last - 1}"

    def panels(self, run: str) -> list[Panel]:
        """The panels of the lists and of the measurements, over the same length of time."""
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
