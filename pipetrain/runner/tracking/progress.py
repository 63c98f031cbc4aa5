"""Progress of a run on the terminal: a bar, or a line now and then without a terminal."""

import json
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Never, TextIO

from tqdm import tqdm

from pipetrain.runner.tracking.records import Record, format_metric, metrics_of
from pipetrain.runner.tracking.run_directory import RunDirectory
from pipetrain.runner.tracking.throughput import SIMULATOR


@dataclass(frozen=True)
class RunLength:
    """Number of steps of a run and of an epoch, and the steps after which the evaluation set is passed."""

    steps: int
    steps_per_epoch: int
    evaluations: Sequence[int] = ()

    @property
    def epochs(self) -> int:
        """Number of epochs, including an incomplete last one."""
        return -(-self.steps // self.steps_per_epoch)

    def steps_of(self, epoch: int) -> int:
        """Number of steps of an epoch, counted from 1."""
        return min(self.steps_per_epoch, self.steps - (epoch - 1) * self.steps_per_epoch)


_LEAST_STEPS, _LEAST_SECONDS = 3, 10.0
"""Steps or seconds before the time of an epoch is estimated; the first steps take longer than others."""


_RECENT = 20
"""Records over which throughput is averaged for display: a single step's jumps."""


def _bar(**options: Any) -> "tqdm[Never]":
    """A bar that is removed when it is closed: on the terminal, if there is one, or in a notebook."""
    kind: type[tqdm[Never]] = tqdm
    if "ipykernel" in sys.modules:  # else this import takes as long as all others of tqdm together
        kind = import_module("tqdm.auto").tqdm
    return kind(**options, leave=False, file=sys.stderr)


def status(text: str, *, hidden: bool = False) -> AbstractContextManager[object]:
    """Shows a text on the terminal, if there is one, for as long as something takes."""
    return _bar(bar_format=text, disable=hidden or None)


def announce(text: str, *, hidden: bool = False) -> AbstractContextManager[object]:
    """As `status`; without a terminal, prints a line to standard error."""
    if not hidden and not sys.stderr.isatty():
        print(text, file=sys.stderr, flush=True)
    return status(text, hidden=hidden)


def counting(text: str, total: int, *, hidden: bool = False) -> "tqdm[Never]":
    """A bar on the terminal, if there is one, for a number of turns of about the same length."""
    return _bar(desc=text, total=total, disable=hidden or None, dynamic_ncols=True)


_LONG_EPOCH = 60.0
"""Seconds of an epoch from which on its time is printed after the first steps."""
_LONG_EVALUATION = 10.0
"""Seconds after which an evaluation is printed in a line if there is no terminal."""
_TICK_SECONDS = 0.5


class ProgressBar:
    """Share of the epoch, loss, samples/s or tokens/s, and the time left of the run; a line per epoch.

    A separate thread shows how long the run has been busy with something other than a step.

    Args:
        length: of the run.
        starting: names the start of the run until its first step.
        step: from which a run resumes.
        line_seconds: seconds between lines of progress if there is no terminal; 0: only a line per epoch.
        hidden: True if nothing is shown at all.

    Attributes:
        begun_at: the step from which the run was started last.
    """

    def __init__(
        self, length: RunLength, starting: str, step: int = 0, *, line_seconds: float = 60.0, hidden: bool = False
    ) -> None:
        self._length, self._starting = length, starting
        self._hidden, self._line_seconds = hidden, line_seconds
        self._train_loss: float | None = None
        self._estimates_epoch = line_seconds > 0
        self._line_at = time.monotonic()
        self._recent: deque[tuple[int, float]] = deque(maxlen=_RECENT)
        self._bar = _bar(disable=hidden or None, dynamic_ncols=True, bar_format=starting)
        self._lock = threading.RLock()
        self._begin(step)
        if self._bar.disable:
            self._line(starting)
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._keep_ticking, name="progress bar", daemon=True)
        if not hidden:
            self._thread.start()

    def _begin(self, step: int) -> None:
        self.begun_at = step
        self._begun_s = time.monotonic()
        self._epoch = 0
        self._recent.clear()
        self._wait_for(self._starting)

    def begin_again(self, why: str, step: int) -> None:
        """Goes back to the step from which the run restarts, and prints why."""
        with self._lock:
            self._line(why)
            self._begin(step)

    def _keep_ticking(self) -> None:
        while not self._closed.wait(_TICK_SECONDS):
            self.tick()

    def _wait_for(self, what: str, line: str = "") -> None:
        """Waits for something other than a step; without a terminal, prints `line` if it takes long."""
        self._waits_for, self._since = what, time.monotonic()
        self._long_line, self._long_line_after = line, min(_LONG_EVALUATION, self._line_seconds)
        self.tick()

    def tick(self) -> None:
        """Shows how long the run has been waiting for something other than a step."""
        with self._lock:
            seconds = time.monotonic() - self._since
            if self._waits_for and not self._bar.disable:
                self._bar.bar_format = self._waits_for + (f", {seconds:.0f} s" if seconds >= 1 else "")
                self._bar.refresh()
            elif self._long_line and self._line_seconds and seconds >= self._long_line_after:
                self._long_line_after = seconds + self._line_seconds
                self._line(f"{self._long_line} for {seconds:.0f} s")

    def update(self, record: Record) -> None:
        """Shows one record of metrics.jsonl."""
        kind, evaluated = record["kind"], record["step"] in self._length.evaluations
        with self._lock:
            if kind == "start":
                self._begun_s = time.monotonic()
            if kind == "epoch":
                self._train_loss = record["loss"]
            if evaluated and (kind == "epoch" or (kind == "start" and record.get("evaluation_due"))):
                epoch = self._of(record["epoch"])
                self._wait_for(f"{epoch}  evaluating", f"{epoch} | step {record['step']} | evaluating")
            elif kind == "start":
                self._wait_for("waiting for the first step")
            elif kind == "interval":
                self._step(record)
            elif kind in ("epoch", "eval"):
                self._end_epoch(record)
            elif kind == "warning" and not self._hidden:
                tqdm.write(f"pipetrain: warning: {record['message']}", file=sys.stderr)

    def _of(self, epoch: int) -> str:
        return f"epoch {epoch}/{self._length.epochs}"

    def _end_epoch(self, record: Record) -> None:
        """Prints the line of an epoch, at its last record."""
        metrics = " ".join(f"{name} {format_metric(value)}" for name, value in metrics_of(record).items())
        loss = "" if self._train_loss is None else f"train loss {self._train_loss:.4f}"
        parts = [self._of(record["epoch"]), f"step {record['step']}", loss, f"eval {metrics}" if metrics else ""]
        last = record["step"] >= self._length.steps
        self._wait_for("finishing" if last else f"{self._of(record['epoch'] + 1)}  waiting for its first step")
        self._line(" | ".join(filter(None, parts)))

    def _step(self, record: Record) -> None:
        epoch, step = record["epoch"], record["step"]
        self._waits_for = self._long_line = ""
        if epoch != self._epoch:
            self._epoch = epoch
            self._bar.reset(self._length.steps_of(epoch))
        unit, whose = "tokens" if "tokens" in record else "samples", "simulator " if SIMULATOR in record else ""
        self._recent.append((record[unit], record["train_s"]))
        amount, seconds = map(sum, zip(*self._recent, strict=True))
        done, elapsed = step - self.begun_at, time.monotonic() - self._begun_s
        left = tqdm.format_meter(step, self._length.steps, elapsed, bar_format="{remaining}", initial=self.begun_at)
        measured = [f"loss {record['loss']:.4f}", f"{whose}{amount / seconds:.0f} {unit}/s", f"{left} left"]
        self._bar.bar_format = f"{self._of(epoch)} {{percentage:3.0f}}%|{{bar}}| {', '.join(measured)}"
        self._bar.update(step - (epoch - 1) * self._length.steps_per_epoch - self._bar.n)
        shown = [self._of(epoch), f"step {step}/{self._length.steps}", *measured]
        epoch_s = self._length.steps_of(1) * elapsed / max(1, done)
        tells = self._estimates_epoch and (done >= _LEAST_STEPS or elapsed >= _LEAST_SECONDS)
        self._estimates_epoch = self._estimates_epoch and not tells
        if tells and epoch_s >= _LONG_EPOCH:
            self._line(" | ".join([*shown, f"{tqdm.format_interval(epoch_s)} per epoch"]))
        elif self._bar.disable and self._line_seconds and time.monotonic() - self._line_at >= self._line_seconds:
            self._line(" | ".join(shown))

    def _line(self, text: str) -> None:
        """Prints a line that stays, above the bar if there is one."""
        self._line_at = time.monotonic()
        if not self._hidden:
            tqdm.write(text, file=sys.stdout)
            sys.stdout.flush()

    def close(self) -> None:
        """Takes the bar off the terminal."""
        self._closed.set()
        if self._thread.is_alive():
            self._thread.join()
        self._bar.close()


_POLL_SECONDS = 0.2


class MetricsTail:
    """Shows what another process writes to metrics.jsonl, so that this process alone writes to the terminal.

    Args:
        run: the run directory.
        bar: shows the records.
        after_step: the step from which a run resumes; earlier records are not shown.
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
