"""The trace of a run read back: what every stage did when, and how long it took."""

import json
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipetrain.errors import ConfigError
from pipetrain.program.drain_interval import DrainInterval
from pipetrain.program.times import StageTimes
from pipetrain.report.timeline.panels import Box, Message
from pipetrain.schedules import Kind, Operation
from pipetrain.tracking.trace_writer import INTERVALS

_MICROSECOND = 1e-6


@dataclass(frozen=True)
class Trace:
    """A trace in seconds, with minibatches counted from the start of the run.

    Attributes:
        rows: the operations of every stage in chronological order.
        messages: what every stage sent and received.
        intervals: the drain intervals that the run completed.
    """

    rows: list[list[Box]]
    messages: list[list[Message]]
    intervals: list[DrainInterval]

    def of_minibatches(self, first: int, last: int) -> "Trace":
        """The part of minibatches `first` to `last`, exclusive."""

        def of(pieces: Iterable[Any]) -> list[Any]:
            return [piece for piece in pieces if first <= piece.operation.minibatch < last]

        intervals = [interval for interval in self.intervals if first <= interval.start < last]
        return Trace([of(row) for row in self.rows], [of(row) for row in self.messages], intervals)


def read_trace(path: Path, num_stages: int) -> Trace:
    """The trace at `path`, in the Chrome trace event format with one `tid` a stage.

    Raises:
        ConfigError: it is not a trace, or of a run with another number of stages.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        intervals = [DrainInterval(**interval) for interval in content["metadata"][INTERVALS]]
        slices = [event for event in content["traceEvents"] if event["ph"] == "X"]
        rows: list[list[Box]] = [[] for _ in range(num_stages)]
        messages: list[list[Message]] = [[] for _ in range(num_stages)]
        for event in sorted(slices, key=lambda event: event["ts"]):
            into: list[Any] = (messages if event["cat"] in ("recv", "send") else rows)[event["tid"]]
            into.append(_piece(event))
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise ConfigError(
            f"{path}: not the trace of a run of {num_stages} stages ({type(error).__name__}: {error})"
        ) from error
    return Trace(rows, messages, intervals)


def _piece(event: dict[str, Any]) -> Box | Message:
    args, start = event["args"], event["ts"] * _MICROSECOND
    operation, end = Operation.parse(args["operation"]), start + event["dur"] * _MICROSECOND
    if event["cat"] in ("recv", "send"):
        return Message(event["cat"], operation, start, end)
    return Box(operation, args.get("read"), args.get("staleness"), start, end)


def median_times(trace: Trace, num_microbatches: int) -> StageTimes:
    """Median seconds of every stage's operations; messages take none, as waits do not show how long a message took."""

    def medians(kind: Kind) -> list[float]:
        return [_median(row, kind, num_microbatches) for row in trace.rows]

    links = [0.0] * (len(trace.rows) - 1)
    forward, recomputation, backward, update = (
        medians(kind) for kind in (Kind.FORWARD, Kind.RECOMPUTATION, Kind.BACKWARD, Kind.UPDATE)
    )
    return StageTimes(forward, recomputation, backward, update, num_microbatches, links, links)


def _median(row: Sequence[Box], kind: Kind, num_microbatches: int) -> float:
    """Median time of updates, or of operations of one microbatch."""
    of_kind = [box for box in row if box.operation.kind is kind]
    shares = [1 if kind is Kind.UPDATE else len(box.operation.covers(num_microbatches)) for box in of_kind]
    times = [(box.end - box.start) / share for box, share in zip(of_kind, shares, strict=True)]
    return statistics.median(times) if times else 0.0
