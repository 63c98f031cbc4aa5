"""A timeline of what a run did, read from its trace, next to the prediction from its operation lists."""

import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from pipetrain.data.files import strict_json
from pipetrain.data.files.json_reader import from_json
from pipetrain.engine.errors import ConfigError, one_line
from pipetrain.engine.executors.pipeline_rules import PipelineRules
from pipetrain.engine.program.drain_interval import DrainInterval
from pipetrain.engine.program.playback import MessageTimes, Slice, play
from pipetrain.engine.program.steady_state import between_updates, peak_in_flight
from pipetrain.engine.program.times import StageTimes
from pipetrain.engine.schedules import Kind, Operation
from pipetrain.reporting.timeline.panels import Box, Message, Panel, boxes, by_process, number, scale_times
from pipetrain.runner.config.phases import PhaseSettings
from pipetrain.runner.config.settings import Settings
from pipetrain.runner.terminal.text_table import text_table
from pipetrain.runner.tracking.run_directory import RunDirectory
from pipetrain.runner.tracking.stored_settings import stored_settings
from pipetrain.runner.tracking.trace_writer import INTERVALS
from pipetrain.runner.training.components.pipeline import build_pipeline_rules, build_recompute_segments

_MICROSECOND = 1e-6


@dataclass(frozen=True)
class Trace:
    """Operations and messages of each worker in chronological order, in seconds, and the completed drain intervals.

    Minibatches count from the start of the run.
    """

    rows: list[list[Box]]
    messages: list[list[Message]]
    intervals: list[DrainInterval]

    def of_minibatches(self, first: int, last: int) -> "Trace":
        """The part of minibatches `first` to `last`, exclusive."""

        def part(rows: Sequence[Sequence[Any]]) -> list[list[Any]]:
            return [[piece for piece in row if first <= piece.operation.minibatch < last] for row in rows]

        intervals = [interval for interval in self.intervals if first <= interval.start < last]
        return Trace(part(self.rows), part(self.messages), intervals)


def read_trace(path: Path, num_stages: int) -> Trace:
    """The trace at `path`, in the Chrome trace event format with one `tid` a process.

    Raises:
        ConfigError: it is not a trace, or of a run with another number of stages.
    """
    rows: list[list[Box]] = [[] for _ in range(num_stages)]
    messages: list[list[Message]] = [[] for _ in range(num_stages)]
    try:
        content = strict_json.read(path)
        found = from_json(tuple[DrainInterval, ...], content["metadata"][INTERVALS], INTERVALS)
        intervals = [interval for interval in found if interval.minibatches > 0]
        slices = [event for event in content["traceEvents"] if event["ph"] == "X"]
        if sum(interval.minibatches for interval in intervals) > len(slices):
            raise ValueError("it has fewer operations than minibatches")
        for event in sorted(slices, key=lambda event: event["ts"]):
            args, what = event["args"], event["cat"]
            worker = args.get("stage", event["tid"])  # the track of a process has several stages
            operation, start = Operation.parse(args["operation"]), event["ts"] * _MICROSECOND
            end = start + event["dur"] * _MICROSECOND
            if not math.isfinite(start + end):
                raise ValueError(f"{operation} has no time")
            if what in ("recv", "send"):
                messages[worker].append(Message(what, operation, start, end))
            else:
                rows[worker].append(Box(operation, args.get("read"), args.get("staleness"), start, end, worker))
    except (OSError, ValueError, KeyError, TypeError, IndexError, AttributeError, OverflowError, ConfigError) as error:
        raise ConfigError(
            f"{path}: not the trace of a run of {num_stages} stages ({type(error).__name__}: {error})"
        ) from error
    return Trace(rows, messages, intervals)


def median_times(trace: Trace, num_microbatches: int) -> StageTimes:
    """Median seconds of every stage's operations; messages take none, as waits do not show how long a message took."""

    def median(row: Sequence[Box], kind: Kind) -> float:
        """Of updates, or of operations of one microbatch."""
        times = [
            (box.end - box.start) / (1 if kind is Kind.UPDATE else len(box.operation.covers(num_microbatches)))
            for box in row
            if box.operation.kind is kind
        ]
        return statistics.median(times) if times else 0.0

    links = [0.0] * (len(trace.rows) - 1)
    forward, recomputation, backward, update, weight_gradient = (
        [median(row, kind) for row in trace.rows]
        for kind in (Kind.FORWARD, Kind.RECOMPUTATION, Kind.BACKWARD, Kind.UPDATE, Kind.WEIGHT_GRADIENT)
    )
    return StageTimes(
        forward, recomputation, backward, update, num_microbatches, links, links, weight_gradient=weight_gradient
    )


@dataclass(frozen=True)
class _StageBounds:
    first: int
    last: int


@dataclass(frozen=True)
class _Cut:
    """What plan.json says of the stages and their replicas."""

    stages: tuple[_StageBounds, ...]
    replicas: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if not self.stages or 0 in (self.replicas or ()):
            raise ConfigError("it has no stages, or one without a process")

    @classmethod
    def read(cls, path: Path) -> Self:
        try:
            cut: Self = from_json(cls, strict_json.read(path))
        except (OSError, ValueError, ConfigError) as error:
            raise ConfigError(f"{path}: damaged: {one_line(error)}") from error
        return cut


_CALLED = ("schedule", "method", "phases")
_USUAL = 6
_MS = 1000.0
Rows = Sequence[Sequence[Slice]]


def timeline_of_run(
    run: Path, first: int | None, minibatches: int | None, *, trust: bool
) -> tuple[list[Panel], list[str]]:
    """Two panels over the same minibatches, and the lines to print about them.

    Args:
        run: the run directory.
        first: a minibatch, counted from the start of the run; None: those in the middle of the first part between
            two drains.
        minibatches: how many, at most those up to the next drain; None: 6.
        trust: True to call schedules and methods that are not pipetrain's own.

    Raises:
        ConfigError: `run` has no trace, or one of other minibatches or of other operations than its lists; or its
            schedule or method is not pipetrain's own.
    """
    directory = RunDirectory(run)
    settings = stored_settings(directory, _CALLED, trust=trust)
    if not directory.trace.is_file():
        raise ConfigError(f"{run}: has no {directory.trace.name}; only runs with trace=true write one, when they end")
    plan = _Cut.read(directory.plan)
    workers = _rules(settings, settings.phases[0], plan).replicas.num_workers  # the same in all phases
    trace = read_trace(directory.trace, workers)
    interval = _interval(directory.trace, trace, first)
    if interval.phase >= len(settings.phases):
        raise ConfigError(f"{directory.trace}: is of {interval.phase + 1} phases, and config.yaml has fewer")
    phase, start, length = settings.phases[interval.phase], interval.start, interval.minibatches
    rules, trace = _rules(settings, phase, plan), trace.of_minibatches(start, start + length)
    _check_operations(directory.trace, rules, interval, trace.rows)
    placement = rules.placement if rules.placement.several else None
    times = median_times(trace, rules.num_microbatches)
    played = play(
        rules.lists(length),
        times.duration,
        rules.segments,
        MessageTimes(times.transfer),
        rules.replicas,
        rules.orders(length),
    )
    # minibatches count from the drain, as in the lists
    measured = [[Slice(box.operation.moved(-start), box.start, box.end) for box in row] for row in trace.rows]
    count = min(minibatches or _USUAL, length)
    begin = (length - count) // 2 if first is None else first - start
    drawn = range(begin, min(begin + count, length))

    def rate(rows: Rows) -> str:
        seconds = sum(between_updates(row, drawn.start, drawn.stop)[0] for row in rows) / len(rows)
        per_second = len(drawn) / seconds
        return f"{number(per_second)} minibatches/s, {number(settings.train.batch_size * per_second)} samples/s"

    def panel(title: str, rows: list[list[Box]], slices: Rows, messages: list[list[Message]]) -> Panel:
        pieces = [piece for row in slices for piece in row]
        begin = min(piece.start for piece in pieces if piece.operation.minibatch == drawn[0])
        end = max(piece.end for piece in pieces if piece.operation.minibatch == drawn[-1])
        whole = Panel(
            title, rules.num_microbatches, "ms", scale_times(by_process(rows, placement), _MS), 0.0, 0.0,
            scale_times(by_process(messages, placement), _MS),
            facts=(rate(slices),), replicas=rules.replicas, placement=placement,
        )  # fmt: skip
        return whole.between(begin * _MS, end * _MS)

    chosen = ", ".join(f"{group}={phase.choices[group]}" for group in ("method", "schedule"))
    title = f"{chosen}, D = {rules.num_stages}, N = {rules.num_microbatches}"
    extent = f"minibatches {start + drawn[0]} to {start + drawn[-1]}"
    expected = boxes(rules, played, length, start)
    panels = [
        panel(f"{title}: the lists, played with median times, {extent}", expected, played, []),
        panel(f"Measured in {run.resolve().name}, {extent}", trace.rows, measured, trace.messages),
    ]
    end = max(panel.end for panel in panels)
    table = _stage_table(rules, times, played, measured, drawn)
    lines = [f"{run}: {title}; {extent}", *table, f"predicted  {rate(played)}", f"measured   {rate(measured)}"]
    return [replace(panel, end=end) for panel in panels], lines


def _rules(settings: Settings, phase: PhaseSettings, plan: _Cut) -> PipelineRules:
    stage_of = {stage.first: r for r, stage in enumerate(plan.stages) if stage.first < stage.last}
    segments = build_recompute_segments(settings.train, len(plan.stages), stage_of)
    replicas = replace(settings.replicas, counts=settings.replicas.counts or plan.replicas)
    return build_pipeline_rules(phase, len(plan.stages), settings.train.microbatches, segments, replicas)


def _interval(path: Path, trace: Trace, minibatch: int | None) -> DrainInterval:
    """The drain interval that a minibatch of the run is in; None: the first one traced."""
    for interval in trace.intervals:
        if minibatch is None or interval.start <= minibatch < interval.start + interval.minibatches:
            return interval
    if not trace.intervals:
        raise ConfigError(f"{path}: holds no complete minibatch; the run ended before its first drain")
    first, last = trace.intervals[0], trace.intervals[-1]
    end = last.start + last.minibatches - 1
    raise ConfigError(f"--from {minibatch}: {path} is of minibatches {first.start} to {end}")


def _check_operations(path: Path, rules: PipelineRules, interval: DrainInterval, rows: Sequence[Sequence[Box]]) -> None:
    """Checks that the trace at `path` has the operations of the lists."""
    untimed = [[Slice(operation, 0.0, 0.0) for operation in each] for each in rules.lists(interval.minibatches)]
    expected = boxes(rules, untimed, interval.minibatches, interval.start)
    for worker, both in enumerate(zip(expected, rows, strict=True)):
        for planned, traced in itertools.zip_longest(*([box.name for box in row] for row in both)):
            if planned != traced:
                raise ConfigError(
                    f"{path}: {rules.replicas.name(worker)} has {traced or 'nothing'} where the schedule and method in "
                    f"config.yaml say {planned or 'nothing'}; the trace is of another run, or of one that did not end"
                )


def _stage_table(rules: PipelineRules, times: StageTimes, played: Rows, measured: Rows, drawn: range) -> list[str]:
    columns = {
        Kind.FORWARD: times.forward,
        Kind.RECOMPUTATION: times.recomputation,
        Kind.BACKWARD: times.backward,
        Kind.WEIGHT_GRADIENT: times.weight_gradient,
        Kind.UPDATE: times.update,
    }
    shown = {f"{kind} ms": columns[kind] for kind in columns if any(p.operation.kind is kind for p in measured[0])}
    placement = rules.placement if rules.placement.several else None
    processes = [by_process(rows, placement) for rows in (played, measured)]
    table = []
    for r, label in enumerate(rules.replicas.labels):
        p = r if placement is None else placement.process_of(r)
        both = [(rows[r], of_processes[p]) for rows, of_processes in zip((played, measured), processes, strict=True)]
        held = [str(peak_in_flight([piece.operation for piece in row], rules.num_microbatches)) for row, _ in both]
        idle = [f"{between_updates(row, drawn.start, drawn.stop, process)[1]:.1%}" for row, process in both]
        times_ms = (f"{values[r] * _MS:.2f}" for values in shown.values())
        table.append([label, *([str(p)] if placement is not None else []), *times_ms, *held, *idle])
    several = ("process",) if placement is not None else ()
    heads = ("stage", *several, *shown, "in flight: predicted", "measured", "idle share: predicted", "measured")
    return text_table(heads, table, ">" * len(heads))
