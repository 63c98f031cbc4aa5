"""trace.json: the operations and messages of every stage, in the Chrome trace format, with a track per process."""

import contextlib
import json
import platform
import statistics
from bisect import bisect
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pipetrain.data.files import strict_json
from pipetrain.data.files.regular_file import text_of
from pipetrain.engine.program.drain_interval import DrainInterval
from pipetrain.engine.program.times import TimeSpan
from pipetrain.engine.program.trace import TracedList
from pipetrain.engine.program.weight_reads import staleness
from pipetrain.engine.schedules import Kind, Operation, Placement
from pipetrain.runner.tracking.files import write_whole
from pipetrain.runner.tracking.run_directory import RunDirectory

INTERVALS = "drain_intervals"
"""The field of trace.json's metadata that holds the run's drain intervals, each with the fields of DrainInterval."""
_DRAINED = "drained"
"""The field beside it in a part that holds the machine, and the moment of the drain by its clock."""
_RESUMED = "resumed"
"""The field of a part's line that holds the step from which a run resumed: what follows is timed by another clock."""


class TraceFile:
    """The part of a run's trace that the stages of this process write, a line an event.

    Args:
        process: the number of this process, which names the file.
        step: the step from which a run resumes; later records are dropped. 0 for a new run.
        processes: number of processes that write; process 0 also trims the files of processes that no longer exist.
    """

    def __init__(self, run: RunDirectory, process: int, step: int, processes: int) -> None:
        path = run.trace_parts / f"process-{process:05d}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        begin = [{_RESUMED: step}] if step else []
        write_whole(path, _text([*_kept(path, step), *begin]))
        if process == 0:
            for other in sorted(path.parent.glob("process-*.jsonl"))[processes:]:
                write_whole(other, _text(_kept(other, step)))
        self._file = path.open("a", encoding="utf-8")

    def add(self, interval: DrainInterval, lists: Sequence[TracedList], drained_at: float = 0.0) -> None:
        """Writes the events of the stages of this process in an interval.

        `drained_at` is the time of its final drain by this machine's clock; the moment is the same in all processes.
        """
        events = (event for traced in lists for event in _events(traced))
        begin = {INTERVALS: asdict(interval), _DRAINED: [platform.node(), drained_at]}
        self._file.write(_text([begin, *events]))
        self._file.flush()

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


def _text(lines: Sequence[dict[str, Any]]) -> str:
    return "".join(json.dumps(line) + "\n" for line in lines)


def _read(path: Path) -> list[dict[str, Any]]:
    """The lines of a part; the last one is left out if it is incomplete, as after a full disk."""
    texts = text_of(path).splitlines()
    lines = [strict_json.loads(text) for text in texts[:-1]]
    with contextlib.suppress(ValueError):
        lines += [strict_json.loads(text) for text in texts[-1:]]
    return lines


def _kept(path: Path, step: int) -> list[dict[str, Any]]:
    """The lines of a part that are of the steps before `step`."""
    lines = _read(path) if step and path.is_file() else []
    return [line for line in lines if _minibatch(line) < step]


def _minibatch(line: dict[str, Any]) -> int:
    """The minibatch of the run that a line is of, or with which its interval or what follows a resumption begins."""
    if _RESUMED in line:
        return int(line[_RESUMED])
    minibatch: int = line[INTERVALS]["start"] if INTERVALS in line else line["args"]["minibatch"]
    return minibatch


def _events(traced: TracedList) -> Iterator[dict[str, Any]]:
    for planned, span in zip(traced.planned, traced.spans, strict=True):
        here = planned.operation.moved(traced.start)
        reads, name = {}, str(here)
        if here.kind is not Kind.UPDATE:
            read = planned.read.moved(traced.base)
            stale = staleness(planned.read.version, planned.operation.minibatch // traced.replicas)
            reads = {"read": str(read), "version": read.version, "staleness": stale}
            name += f"@{read}"
        event = _event(traced.worker, here.kind.value, name, here, span)
        event["args"] |= reads
        yield event
    for wait in traced.waits:
        here = wait.of.moved(traced.start)
        yield _event(traced.worker, wait.what, f"{wait.what} {here}", here, wait.span)


def _event(worker: int, category: str, name: str, op: Operation, span: TimeSpan) -> dict[str, Any]:
    return {
        "ph": "X", "cat": category, "name": name, "pid": 0, "tid": worker,
        "ts": round(span.start * 1e6, 1), "dur": round(span.seconds * 1e6, 1),
        "args": {"operation": str(op), "minibatch": op.minibatch, "microbatch": op.microbatch},
    }  # fmt: skip


def assemble(run: RunDirectory, placement: Placement) -> None:
    """Makes trace.json from the parts of the processes, a track for each process.

    Time counts from the first event; what follows a resumption begins where what precedes it ends. Where a process has
    several stages, the arguments of an event name its stage.
    """
    parts = [_read(part) for part in sorted(run.trace_parts.glob("process-*.jsonl"))]
    lines = [line for part in parts for line in part]
    intervals = {_minibatch(line): line[INTERVALS] for line in lines if INTERVALS in line}  # every process wrote them
    events = [line for line in lines if "args" in line]
    _continue_time(parts, sorted({line[_RESUMED] for line in lines if _RESUMED in line}))
    if placement.several:
        for event in events:
            event["args"]["stage"] = event["tid"]
            event["tid"] = placement.process_of(event["tid"])
    tracks = [
        {"ph": "M", "name": "thread_name", "pid": 0, "tid": process, "args": {"name": placement.name(process)}}
        for process in range(placement.num_processes)
    ]
    metadata = {INTERVALS: [intervals[start] for start in sorted(intervals)]}
    write_whole(run.trace, json.dumps({"traceEvents": [*tracks, *events], "metadata": metadata}))


@dataclass
class _OnMachine:
    """Events on a machine between two resumptions, and when each interval's drain was over, by the machine's clock."""

    events: list[dict[str, Any]] = field(default_factory=list)
    drained_at: dict[int, float] = field(default_factory=dict)


def _continue_time(parts: Sequence[Sequence[dict[str, Any]]], resumed: Sequence[int]) -> None:
    """Sets the times of events to those on one clock; each of the steps `resumed`, in order, began with other ones."""
    attempts = [defaultdict[str, _OnMachine](_OnMachine) for _ in range(len(resumed) + 1)]
    for part in parts:
        for line in part:
            machines = attempts[bisect(resumed, _minibatch(line))]
            if INTERVALS in line:
                machine, drained_at = line[_DRAINED]
                machines[machine].drained_at[_minibatch(line)] = drained_at
            elif _RESUMED not in line:
                machines[machine].events.append(line)
    end = 0.0
    for machines in attempts:
        events = _on_one_clock([*machines.values()])
        shift = end - min((event["ts"] for event in events), default=0.0)
        for event in events:
            event["ts"] = round(event["ts"] + shift, 1)
        end = max((event["ts"] + event["dur"] for event in events), default=end)


def _on_one_clock(machines: Sequence[_OnMachine]) -> list[dict[str, Any]]:
    """The events of all machines, at the times on the first one's clock."""
    for machine in machines[1:]:
        first, own = machines[0].drained_at, machine.drained_at
        behind = statistics.median([first[start] - own[start] for start in first.keys() & own.keys()] or [0.0])
        for event in machine.events:
            event["ts"] += behind * 1e6
    return [event for machine in machines for event in machine.events]
