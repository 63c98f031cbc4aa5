"""metrics.jsonl: one JSON object a line, complete lines only, readable while the run goes on."""

import contextlib
import logging
from typing import Any, TextIO

from pipetrain.errors import is_whole
from pipetrain.tracking import strict_json
from pipetrain.tracking.run_directory import RunDirectory
from pipetrain.tracking.whole_file import write_whole

log = logging.getLogger(__name__)


class MetricsFile:
    """Appends records; a resumed run first drops those after the checkpoint that it continues.

    Args:
        run: the run directory.
        after_step: the step of that checkpoint, up to which records stay; 0 for a fresh run.
        evaluated: whether the record of an evaluation at that very step stays, too.
    """

    def __init__(self, run: RunDirectory, after_step: int, *, evaluated: bool = True) -> None:
        take_over(run, run, after_step, evaluated=evaluated)
        self._path = run.metrics
        self._file = self._opened()

    def _opened(self) -> TextIO:
        return self._path.open("a+", encoding="utf-8", buffering=1)

    def write(self, record: dict[str, Any]) -> None:
        """Writes one line, flushed; where the file has been removed, after writing anew all lines before it."""
        if not self._path.exists():
            log.warning("%s was removed while the run was writing to it; it has been written again", self._path)
            self._restore()
        self._file.write(_line(record))

    def _restore(self) -> None:
        self._file.seek(0)
        lines = self._file.read()
        self._file.close()
        write_whole(self._path, lines)
        self._file = self._opened()

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


def _line(record: dict[str, Any]) -> str:
    return strict_json.dumps(record) + "\n"


def read(run: RunDirectory) -> list[dict[str, Any]]:
    """The records of a run. Damaged lines, such as a crash may leave at the end, are skipped."""
    if not run.metrics.is_file():
        return []
    lines = run.metrics.read_text(encoding="utf-8", errors="replace").split("\n")
    return [record for line in lines[:-1] if (record := _record(line)) is not None]


def _record(line: str) -> dict[str, Any] | None:
    with contextlib.suppress(ValueError):
        record = strict_json.loads(line)
        if isinstance(record, dict) and is_whole(record.get("step")):
            return record
    return None


def take_over(source: RunDirectory, run: RunDirectory, step: int, *, evaluated: bool = True) -> None:
    """Begins the records of a run with those of the one that it continues, up to the step of the checkpoint.

    Args:
        source: the run that is continued.
        run: the one that continues it.
        step: of the checkpoint.
        evaluated: whether the record of an evaluation at that very step is taken over, too.
    """
    kept = [record for record in read(source) if record["step"] <= step]
    if not evaluated:
        kept = [record for record in kept if record["step"] < step or record.get("kind") != "eval"]
    write_whole(run.metrics, "".join(map(_line, kept)))
