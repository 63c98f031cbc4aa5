"""metrics.jsonl: one JSON object a line, complete lines only, readable while the run goes on."""

import json
from typing import Any

from pipetrain.tracking.run_directory import RunDirectory
from pipetrain.tracking.whole_file import write_whole


class MetricsFile:
    """Appends records; a resumed run first drops those after the checkpoint that it continues.

    Args:
        run: the run directory.
        after_step: the step of that checkpoint, up to which records stay; 0 for a fresh run.
    """

    def __init__(self, run: RunDirectory, after_step: int) -> None:
        earlier = [record for record in read(run) if record["step"] <= after_step] if after_step else []
        write_whole(run.metrics, "".join(map(_line, earlier)))
        self._file = run.metrics.open("a", encoding="utf-8", buffering=1)

    def write(self, record: dict[str, Any]) -> None:
        """Writes one line, flushed."""
        self._file.write(_line(record))

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


def _line(record: dict[str, Any]) -> str:
    return json.dumps(record) + "\n"


def read(run: RunDirectory) -> list[dict[str, Any]]:
    """The records of a run, without a last line still being written."""
    if not run.metrics.is_file():
        return []
    lines = run.metrics.read_text(encoding="utf-8").split("\n")
    return [json.loads(line) for line in lines[:-1] if line]
