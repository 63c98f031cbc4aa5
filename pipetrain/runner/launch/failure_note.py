"""Notes on why a worker failed, left for the launcher by the worker itself or by the process that ended it."""

import contextlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from pipetrain.data.files import strict_json
from pipetrain.engine.errors import one_line
from pipetrain.runner.tracking.run_directory import RunDirectory


class FailureKind(StrEnum):
    """Kind of a worker's failure."""

    FAILED = "failed"
    """It raised an exception."""
    HUNG = "hung"
    """It made no progress, or gave no sign of life."""
    LOST = "lost"
    """It lost the connection to another worker, which is to blame."""


@dataclass(frozen=True)
class FailureNote:
    """Why a worker failed.

    Attributes:
        reason: in one line, such as `KeyError: 'label' (data.py:7)` or `8 s in F3.0`.
        traceback: in full, of an exception.
    """

    kind: FailureKind
    reason: str
    traceback: str = ""

    @property
    def line(self) -> str:
        """One-line description of the failure, such as `hung: 8 s in F3.0`."""
        return f"{self.kind}: {self.reason}"

    def leave(self, run: RunDirectory, process: int) -> None:
        """Writes the note, and the traceback next to it; a full disk must not keep the process from ending."""
        with contextlib.suppress(OSError):
            run.logs.mkdir(exist_ok=True)  # but not the run directory, if that has been removed or renamed
            if self.traceback:
                run.failure_traceback(process).write_text(self.traceback, encoding="utf-8")
            note = {"kind": self.kind, "reason": one_line(self.reason)}
            run.failure_note(process).write_text(json.dumps(note) + "\n", encoding="utf-8")


def failure_notes(run: RunDirectory) -> dict[int, FailureNote]:
    """The existing notes, by process; notes truncated by a full disk are left out."""
    notes = {}
    for process in run.failed_processes():
        file = run.failure_traceback(process)
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            note = strict_json.read(run.failure_note(process))
            traceback = file.read_text(encoding="utf-8") if file.is_file() else ""
            notes[process] = FailureNote(FailureKind(note["kind"]), str(note["reason"]), traceback)
    return notes


def named_failure(run: RunDirectory, name: Callable[[int], str]) -> str | None:
    """The failed worker and its failure, such as `stage 1 hung: 8 s in F3.0`; None if no note blames a worker."""
    notes = failure_notes(run).items()
    return next((f"{name(process)} {note.line}" for process, note in notes if note.kind is not FailureKind.LOST), None)
