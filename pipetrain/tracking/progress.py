"""The progress bar: the one thing that writes to the terminal while a run trains."""

import json
import sys
import threading
import time
from typing import Any

from tqdm import tqdm

from pipetrain.tracking.run_directory import RunDirectory

_POLL_SECONDS = 0.2


class ProgressBar:
    """Epoch, step, loss, samples/s and the last evaluation; a line per epoch, also where there is no terminal."""

    def __init__(self, total_steps: int, epochs: int, step: int = 0, *, hidden: bool = False) -> None:
        self._epochs = epochs
        self._evaluated = ""
        self._started = False
        self._bar = tqdm(
            total=total_steps, initial=step, unit="step", disable=hidden or None, dynamic_ncols=True, leave=False,
            file=sys.stderr,
        )  # fmt: skip

    def update(self, record: dict[str, Any]) -> None:
        """Shows one line of metrics.jsonl."""
        epoch = record["epoch"] + 1
        if "per_stage" in record:
            self._evaluated = " ".join(f"{name} {value:.4g}" for name, value in record.get("eval", {}).items())
            loss = "" if record.get("loss") is None else f" | train loss {record['loss']:.4f}"
            shown = f" | eval {self._evaluated}" if self._evaluated else ""
            tqdm.write(f"epoch {epoch}/{self._epochs} | step {record['step']}{loss}{shown}", file=sys.stdout)
            sys.stdout.flush()
            return
        if not self._started:
            self._bar.unpause()  # no step counts the start of the processes
            self._started = True
        self._bar.set_description(f"epoch {epoch}/{self._epochs}", refresh=False)
        speed = f"{record['samples_per_second']:.0f} samples/s"
        self._bar.set_postfix_str(
            " ".join(filter(None, (f"loss {record['loss']:.4f}", speed, self._evaluated))), refresh=False
        )
        self._bar.update(record["step"] - self._bar.n)

    def close(self) -> None:
        """Takes the bar off the terminal."""
        self._bar.close()


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
                    record = json.loads(line)
                    if record["step"] > self._after:
                        self._bar.update(record)
                if stopping:
                    return
                stopping = self._stop.wait(_POLL_SECONDS)

    def _fresh(self) -> bool:
        # a file that an earlier run left here is rewritten when the workers start
        return self._path.is_file() and self._path.stat().st_mtime >= self._started - 1

    def close(self) -> None:
        """Shows what is left, and ends."""
        self._stop.set()
        self._thread.join()
        self._bar.close()
