"""The trace of a run read back: the operations and messages of every worker, and their times."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipetrain.errors import ConfigError
from pipetrain.program.drain_interval import DrainInterval
from pipetrain.program.times import StageTimes
from pipetrain.report.timeline.panels import Box, Message
from pipetrain.schedules import Kind, Operation
from pipetrain.tracking import strict_json
from pipetrain.tracking.trace_writer import INTERVALS

_MICROSECOND = 1e-6


@dataclass(frozen=True)
class Trace:
    """A trace in seconds, with minibatches counted from the start of the run.

    Attributes:
        rows: the operations of every worker in chronological order.
        messages: sent and received by every worker.
        intervals: the drain intervals that the run completed.
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
    """The trace at `path`, in the Chrome trace event format with one `tid` a stage.

    Raises:
        ConfigError: it is not a trace, or of a run with another number of stages.
    """
    rows: list[list[Box]] = [[] for _ in range(num_stages)]
    messages: list[list[Message]] = [[] for _ in range(num_stages)]
    try:
        content = strict_json.loads(path.read_text(encoding="utf-8"))
        intervals = [DrainInterval(**interval) for interval in content["metadata"][INTERVALS]]
        slices = [event for event in content["traceEvents"] if event["ph"] == "X"]
        for event in sorted(slices, key=lambda event: event["ts"]):
            args, what, worker = event["args"], event["cat"], event["tid"]
            operation, start = Operation.parse(args["operation"]), event["ts"] * _MICROSECOND
            end = start + event["dur"] * _MICROSECOND
            if what in ("recv", "send"):
                messages[worker].append(Message(what, operation, start, end))
            else:
                rows[worker].append(Box(operation, args.get("read"), args.get("staleness"), start, end))
    except (ValueError, KeyError, TypeError, IndexError) as error:
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
    forward, recomputation, backward, update = (
        [median(row, kind) for row in trace.rows]
        for kind in (Kind.FORWARD, Kind.RECOMPUTATION, Kind.BACKWARD, Kind.UPDATE)
    )
    return StageTimes(forward, recomputation, backward, update, num_microbatches, links, links)
