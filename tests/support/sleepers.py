"""Processes that do nothing, in the place of workers."""

import contextlib
import subprocess
import sys
from collections.abc import Iterator

from pipetrain.runner.launch.heartbeat import Activity, Heartbeat, process_namespace


@contextlib.contextmanager
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def beat_of(process: int, pid: int, number: int = 1, born: int = 0, **activity: object) -> Heartbeat:
    return Heartbeat(process, pid, process_namespace(), number, born, Activity(**{"starting": False, **activity}))
