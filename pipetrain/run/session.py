"""A training session: one process's part of a run, in chronological order: restore, train, save, summarize."""

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from torch import Tensor

from pipetrain.errors import DivergedError, LostStageError
from pipetrain.executors.base import Executor
from pipetrain.run.checkpoint import store
from pipetrain.run.checkpoint.background_writer import BackgroundWriter
from pipetrain.run.checkpoint.compatibility import vocabulary_sha256
from pipetrain.run.checkpoint.retention import remove_expired
from pipetrain.run.checkpoint.store import StoredConfig
from pipetrain.run.checkpoint.writer import Snapshot, Writer
from pipetrain.run.decoder import Decoder, decoder_of
from pipetrain.run.job import Job
from pipetrain.run.outcome import summary_of_completed, summary_of_diverged, summary_of_interrupted
from pipetrain.run.trainer import Trainer, evaluation_due, progress_of_target, target_reached
from pipetrain.run.worker_components import WorkerComponents
from pipetrain.tracking import summary
from pipetrain.tracking.run_recorder import Recorder
from pipetrain.tracking.trace_writer import assemble


class SaveClock:
    """Asks for a checkpoint whenever so much time has passed since the last one, and a minibatch has begun.

    Args:
        minutes: that pass; None to never ask.
        ask: called once until the clock is restarted.
    """

    def __init__(self, minutes: float | None, ask: Callable[[], None]) -> None:
        self._seconds = None if minutes is None else 60 * minutes
        self._ask = ask
        self.start()

    def start(self) -> None:
        """Counts from now on."""
        self._began = time.monotonic()
        self._minibatches = 0
        self._asked = False

    def look(self) -> None:
        """Asks, if it is time; to be called before each minibatch."""
        if self._seconds is None or self._asked:
            return
        self._minibatches += 1
        if self._minibatches > 1 and time.monotonic() - self._began >= self._seconds:
            self._asked = True
            self._ask()


_LAST_SECONDS = 30.0
"""Time that a failing run gives a checkpoint to become complete."""


class TrainingSession:
    """A run in one process, from the checkpoint that it continues to its summary.

    Args:
        job: what to run.
        parts: what it needs.
        executor: of the stages of this process.
    """

    def __init__(self, job: Job, parts: WorkerComponents, executor: Executor) -> None:
        self._job = job
        self._parts = parts
        self._executor = executor
        self._aliases = parts.chain.aliases()  # as long as the modules still hold the tensors that they share
        self._config = StoredConfig(job.settings.stored, job.settings.choices)
        self._writer = self._background_writer()
        gate = executor.hooks.gate
        self._clock = SaveClock(job.settings.checkpoint.every_minutes, gate.pause)
        gate.before = self._before_minibatch
        self._decoder = self._decoder_of(job)
        self.trainer = Trainer(
            executor,
            parts.data,
            job.timetable,
            parts.recorder,
            self._save,
            job.settings.train.target,
            reached=target_reached(parts.progress, job.settings.train.target),
            step=parts.progress.get("step", 0),
            measured=parts.progress.get("per_stage", []),
            extra_drains=[*parts.progress.get("extra_drains", ())],
            metrics=parts.progress.get("metrics", {}),
            further=parts.metrics,
            decoder=self._decoder,
            add_evaluation=self._add_evaluation,
        )
        if evaluation_due(parts.progress, job.timetable):
            self.trainer.evaluation_due = True
            self.trainer.saved_at = self.trainer.step if job.resumes_itself else None

    def _background_writer(self) -> BackgroundWriter:
        executor, job, coordinates = self._executor, self._job, self._parts.recorder is not None

        def published() -> None:
            if coordinates:
                remove_expired(job.run, job.settings.checkpoint)

        writer = Writer(executor.rank, executor.exchange_in_background, coordinates=coordinates)
        return BackgroundWriter(writer, executor.hooks, published)

    def _before_minibatch(self) -> None:
        self._writer.check()
        if self._parts.recorder is not None:  # one clock for all processes
            self._clock.look()

    def _decoder_of(self, job: Job) -> Decoder | None:
        parts, hooks = self._parts, self._executor.hooks
        decoder = decoder_of(job.settings, parts.data.dataset, parts.chain)
        return decoder and decoder.on(parts.training.device, hooks)

    def train(self) -> dict[str, Any] | None:
        """Restores, trains and saves; the summary where the last stage is.

        Raises:
            DivergedError: in the process of the last stage.
        """
        doing = self._executor.hooks.on_progress
        if self._job.resume is not None:
            doing(f"loading {self._job.resume.name}")
            for stage in self._executor.stages:
                store.restore(stage, self._job.resume, self.trainer.step)
        recorder = self._parts.recorder
        if recorder is not None:
            recorder.start()
        self._clock.start()
        if self._job.settings.checkpoint.at_start and not self.trainer.step:
            self._save(0)
        reports = self._trained()
        idle = self._parts.progress and self.trainer.step == self._parts.progress["step"]
        if idle and not self.trainer.interrupted:
            reports = self._repeated_end()
        with self._spent_on_checkpoints():
            self._writer.finish()
        result = None
        if recorder is not None:
            ended = summary_of_interrupted if self.trainer.interrupted else summary_of_completed
            result = self._finish(recorder, ended(self._job, recorder, reports, self.trainer.reached))
        if self.trainer.interrupted:
            self._executor.broadcast_from_last(
                None
            )  # none leaves before there is a summary: its launcher would end the others
        return result

    def _trained(self) -> Sequence[dict[str, Any]]:
        try:
            return self.trainer.run()
        except LostStageError:
            raise  # no process is left to complete a checkpoint with
        except Exception:
            self._writer.settle(_LAST_SECONDS)
            raise

    def _repeated_end(self) -> Sequence[dict[str, Any]]:
        """The end of a run that had done all its steps before: what was measured of its stages then."""
        if not self._job.resumes_itself and self.trainer.saved_at is None:
            self._save(self.trainer.step)
        return self.trainer.measured

    def diverge(self, error: DivergedError, reports: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """Ends the run whose recorder raised `error`.

        Raises:
            DivergedError: no recorder of this process did.
        """
        recorder = self._parts.recorder
        if recorder is None:
            raise error
        return self._finish(recorder, summary_of_diverged(self._job, recorder, reports, self.trainer.reached, error))

    def _finish(self, recorder: Recorder, result: dict[str, Any]) -> dict[str, Any]:
        job = self._job
        self._executor.hooks.on_progress("writing the summary")
        result = {**result, **self._transport(), "extra_drains": self.trainer.extra_drains}
        if self._decoder is not None:
            result["metric_signatures"] = self._decoder.signatures
        if self._parts.trace is not None:
            self._parts.trace.close()
            placement = job.placement
            assemble(job.run, [placement.name(process) for process in range(placement.num_processes)])
        recorder.close(result)
        summary.write(job.run, result)
        return result

    def _transport(self) -> dict[str, str]:
        """Fields of the summary about the transport between processes."""
        transport = self._executor.transport
        if transport is None or self._job.placement.num_processes == 1:
            return {"transport": "none", "transport_reason": "one process"}
        return {"transport": transport.backend, "transport_reason": transport.reason}

    def _save(self, step: int) -> None:
        self._executor.hooks.on_progress(f"copying the checkpoint of step {step}")
        with self._spent_on_checkpoints():
            snapshot = Snapshot(self._tensors(), self._progress(step), self._config)
            self._writer.save(self._job.run.checkpoint(step), snapshot)
        self._clock.start()

    def _add_evaluation(self, step: int) -> None:
        if self._parts.recorder is not None:  # what a checkpoint holds of the run is written by this process alone
            self._executor.hooks.on_progress(f"adding the evaluation to the checkpoint of step {step}")
            with self._spent_on_checkpoints():
                self._writer.save_progress(self._job.run.checkpoint(step), self._progress(step))

    @contextlib.contextmanager
    def _spent_on_checkpoints(self) -> Iterator[None]:
        began = time.perf_counter()
        yield
        if self._parts.recorder is not None:
            self._parts.recorder.clock.spend("checkpoint_s", time.perf_counter() - began)

    def _tensors(self) -> dict[str, Tensor]:
        tensors = self._parts.recorder.history() if self._parts.recorder else {}
        for stage in self._executor.stages:
            if stage.replica == 0:  # the others have the same
                tensors.update(store.stage_tensors(stage))
        return tensors

    def _progress(self, step: int) -> dict[str, Any]:
        record = self._parts.recorder.progress() if self._parts.recorder else {}
        return {
            "step": step,
            "steps_per_epoch": self._job.timetable.steps_per_epoch,
            "vocabulary_sha256": vocabulary_sha256(self._parts.data.dataset),
            **progress_of_target(self.trainer.reached, self._job.settings.train.target),
            "per_stage": self.trainer.measured,
            "extra_drains": self.trainer.extra_drains,
            "metrics": self.trainer.metrics,
            "evaluation_due": self.trainer.evaluation_due,
            "aliases": self._aliases,
            "untied": self._parts.chain.untied,
            **self._job.head(),
            **record,
        }
