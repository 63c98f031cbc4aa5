"""Records a run in the process of the last stage: losses, metrics, throughput."""

import contextlib
import math
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pipetrain.engine.device_queue import page_locked, queues
from pipetrain.engine.errors import DivergedError
from pipetrain.engine.failure import described
from pipetrain.engine.losses import StepLoss
from pipetrain.engine.program.drain_interval import DrainInterval
from pipetrain.runner.config.settings import Settings
from pipetrain.runner.tracking import records, throughput
from pipetrain.runner.tracking.callbacks import Callback, CallbackCaller, RunInfo
from pipetrain.runner.tracking.evaluations import Evaluations
from pipetrain.runner.tracking.host_copies import HostCopy
from pipetrain.runner.tracking.records import Measured, MetricsFile, Record
from pipetrain.runner.tracking.run_directory import RunDirectory
from pipetrain.runner.tracking.throughput import Throughput, WallClock

_CPU = torch.device("cpu")


@dataclass(frozen=True)
class RecordedRun:
    """The run that is recorded.

    Attributes:
        samples: of the minibatch of a step, counted from 0.
        rates: the learning rates of a step, counted from 0, as fields of its record.
        counts_tokens: True if the loss is a mean over tokens.
        lower_is_better: the names of metrics, in addition to loss and perplexity, that fall as the model improves.
        callbacks: of the run, by the setting that names each.
        device: that computes the losses.
    """

    directory: RunDirectory
    settings: Settings
    steps_per_epoch: int
    samples: Callable[[int], int]
    rates: Callable[[int], Record]
    counts_tokens: bool = False
    lower_is_better: Sequence[str] = ()
    sweep: Path | None = None
    callbacks: Mapping[str, Callback] = field(default_factory=dict)
    device: torch.device = _CPU


Show = Callable[[Record], None]
_LOSS_BYTES = 1024
"""Page-locked memory for what is read of a step."""
LOSSES = "run.losses"
TOKENS = "run.tokens"


class Recorder:
    """The record of a run: takes each step's loss and each evaluation's metrics, and writes metrics.jsonl.

    A loss that a device has yet to compute is read, and its step recorded, when the next one comes or the pipeline has
    drained. So the device is busy while the host waits.

    Args:
        progress: of a resumed run, `progress()` of its checkpoint, the `step`, and `evaluation_due`: True if the run
            has yet to be evaluated there.
        history: of a resumed run, `history()` of its checkpoint.
    """

    def __init__(
        self,
        recorded: RecordedRun,
        progress: Mapping[str, Any] | None = None,
        history: Mapping[str, Tensor] | None = None,
        show: Show = lambda _record: None,
    ) -> None:
        progress = progress or {}
        earlier = {name: values.tolist() for name, values in (history or {}).items()}
        self._resumed_at: int = progress.get("step", 0)
        self._recorded = recorded
        self._evaluation_due: bool = progress.get("evaluation_due", False)
        self._file = MetricsFile(recorded.directory, self._resumed_at, evaluated=not self._evaluation_due)
        stops = recorded.settings.log.callback_errors == "stop"
        self._callbacks = CallbackCaller(recorded.callbacks, self._warn, stops=stops)
        self._show = show
        self._last = time.perf_counter()
        self._drains_after = 0
        self._closed = False
        # minibatch, number that its loss averages over, and the mean loss on its way to the host
        self._unread: list[tuple[int, float, HostCopy]] = []
        # page-locked memory for the steps that can be unread at once, allocated before the processes are connected
        self._memory: list[Tensor | None] = (
            [page_locked(_LOSS_BYTES) for _ in range(2)] if queues(recorded.device) else []
        )
        self.clock = WallClock(progress)
        self.evaluations = Evaluations(progress, recorded.lower_is_better)
        self.losses: list[float] = earlier.get(LOSSES, [])
        self._tokens: list[int] = earlier.get(TOKENS, [0] * len(self.losses))
        self._throughputs = {
            name: Throughput(recorded.samples, earlier.get(f"run.{name}")) for name in throughput.THROUGHPUTS
        }
        self._speed_name = throughput.SIMULATOR if recorded.settings.executor.simulated else throughput.MEASURED
        self._speed = self._throughputs[self._speed_name]

    def start(self) -> None:
        """Starts the clock, when a run starts or is resumed and its processes are connected."""
        self.clock.start()
        due = {"evaluation_due": True} if self._evaluation_due else {}
        record = {**self._record("start", self._resumed_at), **due}
        self._note(record)
        run = self._recorded
        settings, folder = run.settings, run.directory.path
        self._callbacks.start(RunInfo(folder, settings.stored, settings.choices, self._resumed_at, run.sweep))
        self._callbacks.record(record)
        self.clock.start()  # a tracker may take seconds to connect

    def begin(self, interval: DrainInterval) -> None:
        """Starts the time of the interval's first step, when training continues after something else."""
        self._drains_after = interval.start + interval.minibatches
        self._last = time.perf_counter()

    def step(self, minibatch: int, loss: StepLoss) -> None:
        """Records the loss of `minibatch`, after its update.

        Raises:
            DivergedError: its loss is not finite; on a device that queues, the previous step's.
        """
        mean = HostCopy(loss.mean, self._memory.pop() if self._memory else None)
        self._unread.append((minibatch, loss.count, mean))
        self._read(all_but=1 if queues(loss.mean.device) else 0)

    def drain(self, predicted: Sequence[float] = ()) -> None:
        """Ends the interval, after every stage has drained: its last step has lasted until now. Raises as `step`.

        `predicted` are seconds that each step of simulated stages would take with every stage on its own device.
        """
        self._read()
        step = len(self.losses)
        self._speed.prolong(time.perf_counter() - self._last)
        for minibatch, seconds in enumerate(predicted, start=step - len(predicted)):
            self._throughputs[throughput.PREDICTED].add(minibatch, seconds)
        if step == self._drains_after and self._due(step):
            self._interval(step)

    def staleness(self, stages: Sequence[int], measured: Sequence[Measured]) -> None:
        """Records what the workers of these stages have measured since the last drain, each step by itself."""
        fields: defaultdict[int, Record] = defaultdict(dict)
        for r, of_worker in zip(stages, measured, strict=True):
            for minibatch, found in of_worker:
                fields[minibatch + 1].update({f"stage{r}_{name}": value for name, value in found.items()})
        for step in sorted(fields):
            self._write({**self._record(records.STALENESS, step), **fields[step]})

    def extra_drain(self, step: int, cause: str) -> None:
        """Records a drain after `step` steps that the settings do not ask for, and what caused it."""
        self._write({**self._record("drain", step), "cause": cause})

    def _due(self, step: int) -> bool:
        return step % self._recorded.settings.log.every_steps == 0

    def _read(self, all_but: int = 0) -> None:
        """Reads losses, waiting for them, except the last ones, and records their steps.

        A step lasts from the moment when the loss before it was known to the moment when its own is.
        """
        while len(self._unread) > all_but:
            minibatch, counted, mean = self._unread.pop(0)
            value = mean.take().item()
            self._memory.append(mean.memory)
            began, self._last = self._last, time.perf_counter()
            self.losses.append(value)
            self._tokens.append(int(counted))
            self._speed.add(minibatch, self._last - began)
            if not math.isfinite(value):
                self._unread = []  # the run ends here
                raise DivergedError(minibatch + 1, f"the loss of step {minibatch + 1} is {value}")
            if self._due(minibatch + 1) and minibatch + 1 != self._drains_after:  # the last step lasts until the drain
                self._interval(minibatch + 1)

    def _interval(self, step: int) -> None:
        first = max(0, step - self._recorded.settings.log.every_steps)
        self._write(
            {
                **self._trained("interval", first, step),
                **self._recorded.rates(step - 1),
                **self._speeds([self._speed_name], lambda each: _rounded(each.of(first, step))),
            }
        )

    def epoch(self, step: int, reports: Sequence[Mapping[str, Any]]) -> None:
        """Records the end of an epoch or of the run, with the measurements of each stage so far."""
        first = (self._epoch_of(step) - 1) * self._recorded.steps_per_epoch
        measured = [name for name, each in self._throughputs.items() if each.seconds]
        self._write(
            {
                **self._trained("epoch", first, step),
                **self._speeds(measured, lambda each: _rounded(each.of(first, step))),
                **records.stage_fields(reports),
            }
        )

    def _trained(self, kind: str, first: int, step: int) -> Record:
        """Fields of the record of the steps after `first`."""
        losses = self.losses[first:step]
        return {
            **self._record(kind, step),
            **self._amounts(first, step),
            "train_s": round(self._speed.train_s(first, step), 6),
            "loss": sum(losses) / len(losses),
        }

    def evaluation(self, step: int, metrics: Mapping[str, float], seconds: float) -> None:
        """Records the metrics of an evaluation after `step` steps, which took so long."""
        self.clock.spend("eval_s", seconds)
        self.evaluations.add(step, self._epoch_of(step), metrics)
        fields = {f"eval_{name}": value for name, value in metrics.items()}
        self._write({**self._record("eval", step), "eval_s": round(seconds, 4), **fields})

    def _epoch_of(self, step: int) -> int:
        """The epoch, counted from 1, of a step counted from 1."""
        return -(-step // self._recorded.steps_per_epoch)

    def _record(self, kind: str, step: int) -> Record:
        return {"kind": kind, "step": step, "epoch": self._epoch_of(step), "wall_s": round(self.clock.wall_s, 4)}

    def _write(self, record: Record) -> None:
        self._note(record)
        self._callbacks.record(record)

    def _note(self, record: Record) -> None:
        self._file.write(record)
        self._show(record)

    def _warn(self, line: str) -> None:
        """Records that a callback raised an exception and is not called again."""
        self._write({**self._record("warning", len(self.losses)), "message": f"{line}; it is not called again"})

    def checkpoint(self, step: int, folder: Path) -> None:
        """Reports a complete checkpoint to the callbacks."""
        self._callbacks.call(["on_checkpoint"], step, folder)

    def summary(self) -> dict[str, Any]:
        """Losses, times, throughput and metrics for the summary."""
        steps = len(self.losses)
        return {
            "steps": steps,
            "epochs": round(steps / self._recorded.steps_per_epoch, 4),
            **self._amounts(0, steps),
            "train_s": sum(
                self._throughputs[name].train_s(0, steps) for name in (throughput.MEASURED, throughput.SIMULATOR)
            ),
            **self.clock.fields(),
            **self._speeds(throughput.THROUGHPUTS, Throughput.of_run),
            **self.evaluations.fields(),
        }

    def _amounts(self, first: int, last: int) -> dict[str, int]:
        """Number of samples of these steps, and of tokens if the loss counts tokens."""
        samples = {"samples": self._speed.samples(first, last)}
        return {**samples, "tokens": sum(self._tokens[first:last])} if self._recorded.counts_tokens else samples

    def _speeds(self, names: Sequence[str], value: Callable[[Throughput], float | None]) -> dict[str, float | None]:
        """Throughputs in samples, and in tokens if the loss counts tokens."""
        speeds = {name: value(self._throughputs[name]) for name in names}
        if not self._recorded.counts_tokens:
            return speeds
        for name in names:
            speeds[throughput.in_tokens(name)] = value(
                Throughput(self._tokens.__getitem__, self._throughputs[name].seconds)
            )
        return speeds

    def progress(self) -> dict[str, Any]:
        """Fields of this record in a checkpoint, without its history."""
        return {**self.clock.fields(), **self.evaluations.fields()}

    def history(self) -> dict[str, Tensor]:
        """Losses and seconds of every step so far, float32 (steps,), and their tokens, int64; raises as `step`."""
        self._read()
        seconds = {f"run.{name}": each.seconds for name, each in self._throughputs.items() if each.seconds}
        series = {LOSSES: self.losses, **seconds}
        floats = {name: torch.tensor(values, dtype=torch.float32) for name, values in series.items()}
        return {**floats, TOKENS: torch.tensor(self._tokens)} if self._recorded.counts_tokens else floats

    def close(self, summary: Mapping[str, Any]) -> None:
        """Ends the callbacks, and closes the file."""
        if not self._closed:
            self._closed = True
            self._callbacks.end(summary)
            self._file.close()

    def fail(self, error: BaseException) -> None:
        """Ends the callbacks of a run that an exception ends, unless they have been ended."""
        status = "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"
        with contextlib.suppress(OSError):  # a full disk, which may be the reason
            self.close({"status": status, "reason": described(error), **self.summary()})


def _rounded(speed: float | None) -> float | None:
    return None if speed is None else round(speed, 2)
