"""Follows metrics.jsonl, which another process writes, on the terminal of this one."""

import json
import threading
import time

from pipetrain.tracking.progress import ProgressBar
from pipetrain.tracking.records import Record
from pipetrain.tracking.run_directory import RunDirectory

_POLL_SECONDS = 0.2


class Follower:
    """Shows what another process writes to metrics.jsonl, so that this process alone writes to the terminal."""

    def __init__(self, run: RunDirectory, bar: ProgressBar, after_step: int = 0) -> None:
        self._path = run.metrics
        self._bar = bar
        self._after = after_step
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="progress", daemon=True)
        self._started = time.time()
        self._thread.start()

    def _follow(self) -> None:
        while not self._stop.is_set() and not self._fresh():
            self._bar.tick()
            self._stop.wait(_POLL_SECONDS)
        if not self._fresh():
            return
        with self._path.open(encoding="utf-8") as file:
            rest = ""
            stopping = False
            while True:
                rest += file.read()
                *lines, rest = rest.split("\n")
                for line in lines:
                    self._show(json.loads(line))
                if stopping:
                    return
                self._bar.tick()
                stopping = self._stop.wait(_POLL_SECONDS)

    def _show(self, record: Record) -> None:
        if record["step"] > self._after or (record["kind"] == "start" and record["step"] == self._after):
            self._bar.update(record)

    def _fresh(self) -> bool:
        # a file that an earlier run left here is rewritten when the workers start
        return self._path.is_file() and self._path.stat().st_mtime >= self._started - 1

    def close(self) -> None:
        """Shows what is left, and ends."""
        self._stop.set()
        self._thread.join()
        self._bar.close()
