"""trace.json: what every stage did when, in the Chrome trace format, one track per stage."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pipetrain.program.times import TimeSpan, Wait
from pipetrain.program.weight_reads import Readings
from pipetrain.schedules import Kind, Operation

NAME = "trace.json"
_PARTS = "trace-parts"


class TraceFile:
    """The part of a run's trace that the stages of this process write, a line an event.

    Args:
        run: the run directory.
        stage: the first stage of this process, which names the file.
        step: where a resumed run goes on; what it wrote of later steps is forgotten. 0 for a fresh one.
    """

    def __init__(self, run: Path, stage: int, step: int) -> None:
        path = run / _PARTS / f"stage-{stage:05d}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        before = path.read_text(encoding="utf-8").splitlines(keepends=True) if step and path.is_file() else []
        self._file = path.open("w", encoding="utf-8")
        self._file.writelines(line for line in before if json.loads(line)["args"]["minibatch"] < step)

    def add(
        self, stage: int, readings: Readings, spans: Sequence[TimeSpan], waits: Sequence[Wait], start: int, base: int
    ) -> None:
        """What a stage did in one list.

        Args:
            readings: its list and what each operation read.
            spans: of each operation.
            waits: of its messages.
            start: minibatches since the start of the run before the list.
            base: the version that the list's version 0 is.
        """
        for event in _operations(stage, readings, spans, start, base):
            self._file.write(json.dumps(event) + "\n")
        for wait in waits:
            here = wait.of.moved(start)
            event = _event(stage, wait.what, f"{wait.what} {here}", wait.span, _args(here))
            self._file.write(json.dumps(event) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


def _operations(stage: int, readings: Readings, spans: Sequence[TimeSpan], start: int, base: int) -> Iterator[Any]:
    for op, read, span in zip(readings.operations, readings.reads, spans, strict=True):
        here = op.moved(start)
        args, name = _args(here), str(here)
        if op.kind is not Kind.UPDATE and read is not None:
            args |= {"read": str(read.moved(base)), "version": base + read.version}
            name += f"@{args['read']}"
        yield _event(stage, op.kind.value, name, span, args)


def _args(op: Operation) -> dict[str, Any]:
    return {"operation": str(op), "minibatch": op.minibatch, "microbatch": op.microbatch}


def _event(stage: int, category: str, name: str, span: TimeSpan, args: dict[str, Any]) -> dict[str, Any]:
    return {
        "ph": "X", "cat": category, "name": name, "pid": 0, "tid": stage,
        "ts": round(span.start * 1e6, 1), "dur": round(span.seconds * 1e6, 1), "args": args,
    }  # fmt: skip


def assemble(run: Path, num_stages: int) -> None:
    """Makes trace.json of what the processes have written; time counts from the first event."""
    events = [
        json.loads(line)
        for part in sorted((run / _PARTS).glob("stage-*.jsonl"))
        for line in part.read_text(encoding="utf-8").splitlines()
    ]
    first = min((event["ts"] for event in events), default=0.0)
    for event in events:
        event["ts"] = round(event["ts"] - first, 1)
    tracks = [
        {"ph": "M", "name": "thread_name", "pid": 0, "tid": r, "args": {"name": f"stage {r}"}}
        for r in range(num_stages)
    ]
    partial = run / (NAME + ".partial")
    partial.write_text(json.dumps({"traceEvents": [*tracks, *events]}), encoding="utf-8")
    partial.replace(run / NAME)
