"""When and what a run saves: the clock of `checkpoint.every_minutes`, and each process's part of a checkpoint."""

import contextlib
import math
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from pipetrain.data.interface import DataSet
from pipetrain.engine.errors import RunError
from pipetrain.engine.executors.base import Executor
from pipetrain.engine.stage.saved_state import stage_tensors
from pipetrain.runner.tracking.run_recorder import Recorder
from pipetrain.runner.training.checkpoint import store
from pipetrain.runner.training.checkpoint.progress import TrainingState
from pipetrain.runner.training.checkpoint.writer import BackgroundWriter, Snapshot, Writer
from pipetrain.runner.training.job import Job
from pipetrain.runner.training.worker import Components


class SaveClock:
    """Asks once for a checkpoint when so many minutes have passed since the last one, and a minibatch has begun."""

    def __init__(self, minutes: float | None, ask: Callable[[], None]) -> None:
        self._seconds = math.inf if minutes is None else 60 * minutes
        self._ask = ask
        self.start()

    def start(self) -> None:
        """Counts from now on."""
        self._began = time.monotonic()
        self._minibatches = 0

    def look(self) -> None:
        """Asks, if it is time; to be called before each minibatch."""
        self._minibatches += 1
        if self._minibatches > 1 and time.monotonic() - self._began >= self._seconds:
            self._began = math.inf  # asks once
            self._ask()


class CheckpointSaver:
    """Saves the checkpoints of a run, together with the other processes; the one with the recorder coordinates them.

    It is made while the modules still hold the tensors that they share.
    """

    def __init__(self, job: Job, components: Components, executor: Executor, recorder: Recorder | None) -> None:
        self._job = job
        self._executor = executor
        self._recorder = recorder
        self._config = {"settings": job.settings.stored, "choices": job.settings.choices}
        self._constant = {
            "steps_per_epoch": job.timetable.steps_per_epoch,
            "vocabulary_sha256": DataSet(components.data.dataset).vocabulary_sha256,
            "data": job.data,
            "aliases": components.chain.aliases(),
            "untied": components.chain.untied,
            "initial_weights": job.provenance.get("initial_weights"),
            **job.head(),
        }
        if job.plan.measured:
            stages = job.plan.stages
            self._constant["planned_stages"] = [
                {"first": each.first, "estimated_seconds": each.estimated_seconds} for each in stages
            ]
        exchange = partial(executor.exchange, background=True)
        writer = Writer(executor.rank, exchange, coordinates=recorder is not None)
        published = partial(store.remove_expired, job.run, job.settings.checkpoint) if recorder is not None else None
        self.writer = BackgroundWriter(writer, executor.hooks, published)
        self._unreported: int | None = None
        self.clock = SaveClock(job.settings.checkpoint.every_minutes, executor.hooks.gate.pause)
        executor.hooks.gate.before = self._before_minibatch

    def _before_minibatch(self) -> None:
        self.writer.check()
        if self._recorder is not None:  # one clock for all processes
            self.clock.look()
        if self.writer.succeeded:
            self._report()

    def _report(self) -> None:
        """Reports the last checkpoint to callbacks, once, now that it is complete."""
        step, self._unreported = self._unreported, None
        if self._recorder is not None and step is not None:
            self._recorder.checkpoint(step, self._job.run.checkpoint(step))

    def save(self, state: TrainingState) -> None:
        """Writes a checkpoint of this step in the background."""
        self.finish()  # reports the one before while it is there: the thread of this one may remove it
        self._executor.hooks.on_progress(f"copying the checkpoint of step {state.step}")
        with self._timed():
            tensors = self._recorder.history() if self._recorder else {}
            for stage in self._executor.stages:
                if stage.replica == stage.state_of:  # other replicas have the same
                    tensors.update(stage_tensors(stage))
            snapshot = Snapshot(tensors, self._progress(state), self._config)
            self.writer.save(self._job.run.checkpoint(state.step), snapshot)
        self._unreported = state.step
        self.clock.start()

    def add_evaluation(self, state: TrainingState) -> None:
        """Adds the evaluation at this step to its checkpoint, in the process of the last stage."""
        if self._recorder is not None:
            self._executor.hooks.on_progress(f"adding the evaluation to the checkpoint of step {state.step}")
            with self._timed():
                self.writer.save_progress(self._job.run.checkpoint(state.step), self._progress(state))

    def finish(self) -> None:
        """Waits until the last checkpoint is complete."""
        with self._timed():
            self.writer.finish()
        self._report()

    def settle(self, seconds: float) -> None:
        """Gives the last checkpoint some time to become complete, as the run is about to fail."""
        self.writer.settle(seconds)
        if self._unreported is not None and self._job.run.checkpoint(self._unreported).is_dir():
            with contextlib.suppress(RunError):  # of a callback; the run fails for another reason
                self._report()

    def _progress(self, state: TrainingState) -> dict[str, Any]:
        return {**state.fields(), **self._constant, **(self._recorder.progress() if self._recorder else {})}

    @contextlib.contextmanager
    def _timed(self) -> Iterator[None]:
        began = time.perf_counter()
        yield
        if self._recorder is not None:
            self._recorder.clock.spend("checkpoint_s", time.perf_counter() - began)
