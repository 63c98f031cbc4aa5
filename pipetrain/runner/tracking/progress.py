"""Progress of a run on the terminal: a bar, or a line now and then without a terminal."""

import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Never

from tqdm import tqdm

from pipetrain.runner.tracking.records import Record, format_metric, metrics_of
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


_RECENT = 20
"""Number of records over which the displayed throughput is averaged."""
_LONG_EVALUATION = 10.0
"""Seconds after which an evaluation is printed in a line if there is no terminal."""
_TICK_SECONDS = 0.5


def _bar(**options: Any) -> "tqdm[Never]":
    """A bar that is removed when it is closed: on the terminal, if there is one, or in a notebook."""
    kind: type[tqdm[Never]] = tqdm
    if "ipykernel" in sys.modules:  # else this import takes as long as the rest of tqdm
        kind = import_module("tqdm.auto").tqdm
    return kind(**options, leave=False, file=sys.stderr)


def status(text: str, *, hidden: bool = False) -> AbstractContextManager[object]:
    """Shows a text on the terminal, if there is one, while something runs."""
    return _bar(bar_format=text, disable=hidden or None)


def announce(text: str, *, hidden: bool = False) -> AbstractContextManager[object]:
    """As `status`; without a terminal, prints a line to standard error."""
    if not hidden and not sys.stderr.isatty():
        print(text, file=sys.stderr, flush=True)
    return status(text, hidden=hidden)


def counting(text: str, total: int, *, hidden: bool = False) -> "tqdm[Never]":
    """A bar on the terminal, if there is one, over `total` steps of similar length."""
    return _bar(desc=text, total=total, disable=hidden or None, dynamic_ncols=True)


class ProgressBar:
    """Share of the epoch, loss, samples/s or tokens/s, and the time left of the run; a line per epoch.

    A separate thread shows how long the run has been busy with something other than a step. Until the first one, the
    bar says what is `starting`. Without a terminal, lines are `line_seconds` apart; 0: only a line per epoch.

    Attributes:
        begun_at: the step from which the run was started last.
    """

    def __init__(
        self, length: RunLength, starting: str, step: int = 0, *, line_seconds: float = 60.0, hidden: bool = False
    ) -> None:
        self._length, self._starting = length, starting
        self._hidden, self._line_seconds = hidden, line_seconds
        self._train_loss: float | None = None
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
        """Draws the bar again, with the time that the run has been waiting for something other than a step."""
        with self._lock:
            seconds = time.monotonic() - self._since
            if not self._bar.disable:
                if self._waits_for:
                    self._bar.bar_format = self._waits_for + (f", {seconds:.0f} s" if seconds >= 1 else "")
                self._bar.refresh()
            elif self._long_line and self._line_seconds and seconds >= self._long_line_after:
                self._long_line_after = seconds + self._line_seconds
                self._line(f"{self._long_line} for {seconds:.0f} s")

    def update(self, record: Record) -> None:
        """Shows one record of metrics.jsonl."""
        show = {
            "start": self._start, "interval": self._step, "epoch": self._end_epoch, "eval": self._print_epoch,
            "warning": self._warn,
        }.get(record["kind"])  # fmt: skip
        if show is not None:
            with self._lock:
                show(record)

    def _start(self, record: Record) -> None:
        self._begun_s = time.monotonic()
        if not (record.get("evaluation_due") and self._evaluates(record)):
            self._wait_for("waiting for the first step")

    def _evaluates(self, record: Record) -> bool:
        """True if an evaluation follows the record; shows it."""
        if record["step"] not in self._length.evaluations:
            return False
        epoch = self._of(record["epoch"])
        self._wait_for(f"{epoch}  evaluating", f"{epoch} | step {record['step']} | evaluating")
        return True

    def _warn(self, record: Record) -> None:
        if not self._hidden:
            tqdm.write(f"pipetrain: warning: {record['message']}", file=sys.stderr)

    def _of(self, epoch: int) -> str:
        return f"epoch {epoch}/{self._length.epochs}"

    def _end_epoch(self, record: Record) -> None:
        self._train_loss = record["loss"]
        if not self._evaluates(record):
            self._print_epoch(record)

    def _print_epoch(self, record: Record) -> None:
        """Prints the line of an epoch, at its last record: the evaluation, if one follows."""
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
        elapsed = time.monotonic() - self._begun_s
        left = tqdm.format_meter(step, self._length.steps, elapsed, bar_format="{remaining}", initial=self.begun_at)
        measured = [f"loss {record['loss']:.4f}", f"{whose}{amount / seconds:.0f} {unit}/s", f"{left} left"]
        self._bar.bar_format = f"{self._of(epoch)} {{percentage:3.0f}}%|{{bar}}| {', '.join(measured)}"
        self._bar.update(step - (epoch - 1) * self._length.steps_per_epoch - self._bar.n)
        if self._bar.disable and self._line_seconds and time.monotonic() - self._line_at >= self._line_seconds:
            self._line(" | ".join([self._of(epoch), f"step {step}/{self._length.steps}", *measured]))

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
