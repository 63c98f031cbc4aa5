"""trace.json: what every stage did when, in the Chrome trace format, one track per stage, or replica of one."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from pipetrain.program.drain_interval import DrainInterval
from pipetrain.program.planned_operations import PlannedOperation
from pipetrain.program.times import TimeSpan, Wait
from pipetrain.program.weight_reads import staleness
from pipetrain.schedules import Kind, Operation
from pipetrain.tracking.files import write_whole
from pipetrain.tracking.run_directory import RunDirectory

INTERVALS = "drain_intervals"
"""The field of trace.json's metadata that holds the run's drain intervals, each with the fields of DrainInterval."""


@dataclass(frozen=True)
class TracedList:
    """A worker's list, carried out.

    Attributes:
        worker: which; without replicas its stage.
        planned: the list.
        start: minibatches of the run before the list.
        base: the version that the list calls 0.
        spans: when it carried out each operation.
        waits: when it handed over or waited for messages.
        replicas: workers of its stage.
    """

    worker: int
    planned: Sequence[PlannedOperation]
    start: int
    base: int
    spans: Sequence[TimeSpan]
    waits: Sequence[Wait] = ()
    replicas: int = 1


class TraceFile:
    """The part of a run's trace that the stages of this process write, a line an event.

    Args:
        run: the run directory.
        process: the number of this process, which names the file.
        step: from which a run resumes; records of later steps are dropped. 0 for a fresh run.
    """

    def __init__(self, run: RunDirectory, process: int, step: int) -> None:
        path = run.trace_parts / f"process-{process:05d}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        before = path.read_text(encoding="utf-8").splitlines(keepends=True) if step and path.is_file() else []
        self._file = path.open("w", encoding="utf-8")
        self._file.writelines(line for line in before if _minibatch(json.loads(line)) < step)

    def add(self, interval: DrainInterval, lists: Sequence[TracedList]) -> None:
        """Writes what the stages of this process did in an interval."""
        self._write({INTERVALS: asdict(interval)})
        for traced in lists:
            for event in _events(traced):
                self._write(event)
        self._file.flush()

    def _write(self, line: dict[str, Any]) -> None:
        self._file.write(json.dumps(line) + "\n")

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


def _minibatch(line: dict[str, Any]) -> int:
    """The minibatch of the run that a line is of, or its interval begins with."""
    minibatch: int = line[INTERVALS]["start"] if INTERVALS in line else line["args"]["minibatch"]
    return minibatch


def _events(traced: TracedList) -> Iterator[dict[str, Any]]:
    for planned, span in zip(traced.planned, traced.spans, strict=True):
        here = planned.operation.moved(traced.start)
        args, name = _args(here), str(here)
        if here.kind is not Kind.UPDATE:
            read = planned.read.moved(traced.base)
            stale = staleness(planned.read.version, planned.operation.minibatch // traced.replicas)
            args |= {"read": str(read), "version": read.version, "staleness": stale}
            name += f"@{read}"
        yield _event(traced.worker, here.kind.value, name, span, args)
    for wait in traced.waits:
        here = wait.of.moved(traced.start)
        yield _event(traced.worker, wait.what, f"{wait.what} {here}", wait.span, _args(here))


def _args(op: Operation) -> dict[str, Any]:
    return {"operation": str(op), "minibatch": op.minibatch, "microbatch": op.microbatch}


def _event(worker: int, category: str, name: str, span: TimeSpan, args: dict[str, Any]) -> dict[str, Any]:
    return {
        "ph": "X", "cat": category, "name": name, "pid": 0, "tid": worker,
        "ts": round(span.start * 1e6, 1), "dur": round(span.seconds * 1e6, 1), "args": args,
    }  # fmt: skip


def assemble(run: RunDirectory, names: Sequence[str]) -> None:
    """Makes trace.json of what the processes have written, a track for each name; time counts from the first event."""
    lines = [
        json.loads(line)
        for part in sorted(run.trace_parts.glob("process-*.jsonl"))
        for line in part.read_text(encoding="utf-8").splitlines()
    ]
    intervals = {_minibatch(line): line[INTERVALS] for line in lines if INTERVALS in line}  # every process wrote them
    events = [line for line in lines if INTERVALS not in line]
    first = min((event["ts"] for event in events), default=0.0)
    for event in events:
        event["ts"] = round(event["ts"] - first, 1)
    tracks = [
        {"ph": "M", "name": "thread_name", "pid": 0, "tid": worker, "args": {"name": name}}
        for worker, name in enumerate(names)
    ]
    metadata = {INTERVALS: [intervals[start] for start in sorted(intervals)]}
    write_whole(run.trace, json.dumps({"traceEvents": [*tracks, *events], "metadata": metadata}))
