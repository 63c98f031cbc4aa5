"""Keeps the record of a run where the last stage is: losses, metrics, throughput."""

import math
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from pipetrain.errors import DivergedError
from pipetrain.tracking.metrics_file import MetricsFile
from pipetrain.tracking.run_directory import RunDirectory
from pipetrain.tracking.tensorboard import Board

Show = Callable[[dict[str, Any]], None]
LOSSES, SPEEDS = "run.losses", "run.speeds"
LOWER_IS_BETTER = ("loss", "perplexity")


def better(metric: str, new: float, old: float) -> bool:
    """Whether `new` improves on `old`."""
    return new < old if metric in LOWER_IS_BETTER else new > old


@dataclass(frozen=True)
class EarlierSteps:
    """What a checkpoint holds of the record of the steps before it.

    Attributes:
        progress: as `Recorder.progress` gave it, and the `step`.
        history: as `Recorder.history` gave it.
    """

    progress: Mapping[str, Any] = field(default_factory=dict)
    history: Mapping[str, Tensor] = field(default_factory=dict)


_NO_EARLIER_STEPS = EarlierSteps()


class Recorder:
    """The record of a run: takes each step's loss and each evaluation's metrics, and writes metrics.jsonl.

    Args:
        run: the run directory.
        rate: the learning rate of each step.
        sizes: samples of each minibatch of an epoch.
        every_steps: steps between lines of the log.
        earlier: the record of the steps before, of a run that is resumed.
        show: is given every record.
    """

    def __init__(
        self,
        run: RunDirectory,
        rate: Callable[[int], float],
        sizes: list[int],
        every_steps: int,
        earlier: EarlierSteps = _NO_EARLIER_STEPS,
        show: Show = lambda _record: None,
    ) -> None:
        progress, history = earlier.progress, earlier.history
        step = progress.get("step", 0)
        self._file = MetricsFile(run, step)
        self._board = Board(run, step + 1 if step else None)
        self._rate = rate
        self._sizes = sizes
        self._every = every_steps
        self._show = show
        self._seconds_before: float = progress.get("wall_s", 0.0)
        self.start()
        self._last = time.perf_counter()
        self._unread: list[tuple[int, Tensor]] = []
        self.losses: list[float] = history[LOSSES].tolist() if history else []
        self.speeds: list[float] = history[SPEEDS].tolist() if history else []
        self.final: dict[str, float] = progress.get("final", {})
        self.best: dict[str, float] = progress.get("best", {})

    def start(self) -> None:
        """Starts the clock of `wall_s`. Call it when a run starts or is resumed, once its processes are connected."""
        self._began = time.perf_counter() - self._seconds_before

    @property
    def wall_s(self) -> float:
        """Seconds that the run has trained, its earlier parts included."""
        return time.perf_counter() - self._began

    def resume_clock(self) -> None:
        """Starts the time of the next step. Call it when training goes on, so that no step counts an evaluation."""
        self._last = time.perf_counter()

    def step(self, minibatch: int, loss: Tensor) -> None:
        """Records the loss of `minibatch`, after its update.

        Raises:
            DivergedError: its loss is not finite. On CUDA, where reading a loss waits for the device, found when it
                is logged.
        """
        self._unread.append((minibatch, loss))
        due = (minibatch + 1) % self._every == 0
        if due or loss.device.type == "cpu":
            self.flush()
        if due:
            record = {
                "step": minibatch + 1,
                "epoch": minibatch // len(self._sizes),
                "wall_s": round(self.wall_s, 4),
                "loss": self.losses[-1],
                "lr": self._rate(minibatch),
                "samples_per_second": round(self.speeds[-1], 2),
            }
            self._file.write(record)
            self._board.step(record)
            self._show(record)

    def flush(self) -> None:
        """Reads the losses still on the device, waiting for it: they share the time since the last ones."""
        unread, self._unread = self._unread, []
        values = [loss.item() for _, loss in unread]
        began, self._last = self._last, time.perf_counter()
        for (minibatch, _), value in zip(unread, values, strict=True):
            self.losses.append(value)
            size = self._sizes[minibatch % len(self._sizes)]
            self.speeds.append(size * len(unread) / (self._last - began))
            if not math.isfinite(value):
                raise DivergedError(minibatch + 1, value)

    def epoch(self, step: int, metrics: dict[str, float] | None, per_stage: list[dict[str, Any]]) -> None:
        """Records the end of an epoch or of the run, with the metrics of its evaluation if there was one."""
        recent = self.losses[-len(self._sizes) :]
        record: dict[str, Any] = {
            "step": step,
            "epoch": (step - 1) // len(self._sizes),
            "wall_s": round(self.wall_s, 4),
            "loss": sum(recent) / len(recent),
            "per_stage": per_stage,
        }
        if metrics is not None:
            record["eval"] = metrics
            self.final = metrics
            for name, value in metrics.items():
                if name not in self.best or better(name, value, self.best[name]):
                    self.best[name] = value
        self._file.write(record)
        self._board.epoch(record)
        self._show(record)

    @property
    def samples_per_second(self) -> float | None:
        """Median over the steps after the first tenth."""
        steady = self.speeds[math.ceil(len(self.speeds) / 10) :] or self.speeds
        return statistics.median(steady) if steady else None

    def progress(self) -> dict[str, Any]:
        """What a checkpoint holds of this record beside its history."""
        return {"wall_s": self.wall_s, "final": self.final, "best": self.best}

    def history(self) -> dict[str, Tensor]:
        """Losses and samples per second of every step so far, float32 (steps,)."""
        values = {LOSSES: self.losses, SPEEDS: self.speeds}
        return {name: torch.tensor(series, dtype=torch.float32) for name, series in values.items()}

    def close(self, settings: dict[str, Any]) -> None:
        """Closes the files; `settings` go to TensorBoard's page of hyperparameters."""
        self._file.close()
        self._board.close(settings, self.final)
