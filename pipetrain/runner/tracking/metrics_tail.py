"""The records that another process writes to metrics.jsonl, shown by this one."""

import json
import os
import threading
import time
from typing import TextIO

from pipetrain.runner.tracking.progress import ProgressBar
from pipetrain.runner.tracking.records import Record
from pipetrain.runner.tracking.run_directory import RunDirectory

_POLL_SECONDS = 0.2


class MetricsTail:
    """Shows what another process writes to metrics.jsonl, so that this process alone writes to the terminal.

    `after_step` is the step from which a run resumes; earlier records are not shown.
    """

    def __init__(self, run: RunDirectory, bar: ProgressBar, after_step: int = 0) -> None:
        self._path, self._bar, self._after = run.metrics, bar, after_step
        self._file: TextIO | None = None
        self._rest = ""
        self._begun = False
        self._seen = self._shown = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="progress", daemon=True)
        self._started = time.time()
        self._thread.start()

    def _follow(self) -> None:
        stopping = False
        while not stopping:
            stopping = self._stop.wait(_POLL_SECONDS)
            self._open()
            if self._file is not None:
                *lines, self._rest = (self._rest + self._file.read()).split("\n")
                for line in lines:
                    self._show(json.loads(line))
        if self._file is not None:
            self._file.close()

    def _open(self) -> None:
        """Opens the file, and opens it again once a resumed run's worker has put another in its place."""
        if not self._path.is_file():
            return
        there = self._path.stat()
        if self._file is None:
            # a file that an earlier run left here is replaced when the workers start
            if there.st_mtime < self._started - 1:
                return
        elif os.fstat(self._file.fileno()).st_ino == there.st_ino:
            return
        else:
            self._file.close()
        self._file, self._rest, self._begun, self._seen = self._path.open(encoding="utf-8"), "", False, 0

    def _show(self, record: Record) -> None:
        # after its start a run may have yet to be evaluated at the step from which it resumes
        self._begun = self._begun or (record["kind"] == "start" and record["step"] == self._after)
        if record["step"] > self._after or (self._begun and record["step"] == self._after):
            self._seen += 1
            if self._seen > self._shown:  # a worker whose file was removed has written it again
                self._shown = self._seen
                self._bar.update(record)

    def close(self) -> None:
        """Shows the remaining records, and ends."""
        self._stop.set()
        self._thread.join()
