"""One run from this process's point of view, in chronological order: build, restore, train, save."""

import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from multiprocessing.util import Finalize
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from pipetrain.errors import DivergedError, ExitCode, LostStageError, RunError
from pipetrain.executors.base import Executor
from pipetrain.executors.gate import Gate
from pipetrain.executors.hooks import OnStep, RunHooks
from pipetrain.executors.phase import Phase
from pipetrain.executors.pipeline import Training, build_stages, connect_stages
from pipetrain.failure import Failure
from pipetrain.launch import lifeline
from pipetrain.launch.breaking_off import broken_off_by
from pipetrain.launch.failure_note import FailureKind, FailureNote
from pipetrain.launch.heartbeat import Heartbeat
from pipetrain.launch.lines import WorkerLines
from pipetrain.launch.memory import keep_freed_memory
from pipetrain.launch.peers import Peers
from pipetrain.launch.pipeline import in_one_process, training_of
from pipetrain.launch.process import ProcessEnvironment, device_at, join, own_store
from pipetrain.launch.signals import Interruption
from pipetrain.launch.watchdog import Watchdog, Watched
from pipetrain.libraries import lazy_compiler
from pipetrain.losses import Loss, counts_tokens
from pipetrain.models.chain import LayerChain
from pipetrain.run import checkpoint, checkpoint_writer
from pipetrain.run.build import Data, build_chain, build_data, build_phases, build_rate
from pipetrain.run.checkpoint_fit import vocabulary_sha256
from pipetrain.run.checkpoint_writer import Writer
from pipetrain.run.decoder import Decoder, decoder_of
from pipetrain.run.job import Job
from pipetrain.run.learning_rates import LearningRates
from pipetrain.run.outcome import summary_of_completed, summary_of_diverged, summary_of_interrupted
from pipetrain.run.ranking import remove_superfluous
from pipetrain.run.trainer import Trainer, progress_of_target, target_reached
from pipetrain.tracking import summary
from pipetrain.tracking.hyperparameters import values_set
from pipetrain.tracking.recorded_run import EarlierSteps, RecordedRun
from pipetrain.tracking.recorder import Recorder, Show
from pipetrain.tracking.trace_writer import TraceFile, assemble

_PRECEDENCE_SECONDS = 1.0
"""What one process gets to tell how the run ended, before others try."""


def simulate(job: Job, show: Show, interruption: Interruption) -> dict[str, Any]:
    """Runs all stages in this process; the summary, which is also written.

    Args:
        job: what to run.
        show: is given every record.
        interruption: of the run; takes note of every signal, even of one that comes too late for it.
    """
    keep_freed_memory()
    parts = build_parts(job, range(job.num_stages), device_at(job.device, 0), show)
    gate = Gate()
    hooks = RunHooks(parts.on_step, trace=parts.trace, gate=gate)
    executor = in_one_process(job, parts.chain, parts.phases, parts.training, hooks)
    run = ProcessRun(job, parts, executor)

    def stop() -> bool:
        gate.shut(gate.hold())
        return True

    try:
        with broken_off_by(stop, job.settings.launch.stop_timeout, interruption):
            return run.train() or {}
    except DivergedError as error:
        return run.diverge(error, run.trainer.reports())


def launched(job: Job, lines: WorkerLines) -> None:
    """The life of a process that our launcher started, which has the other ends of `lines`."""

    def tell(beat: Heartbeat) -> None:
        lines.heartbeats.send_bytes(beat.encoded())

    lifeline.follow_launcher()
    watchdog = Watchdog(watched(job), tell, order=lines.order)
    watchdog.start()
    try:
        result = main(job, watchdog)
    except RunError as error:
        print(error, file=sys.stderr)
        lifeline.leave(ExitCode.FAILED)
    if result is not None and result["status"] == "diverged":
        lifeline.leave(ExitCode.DIVERGED)  # the others wait for messages, and torch's launcher ends them
    watchdog.activity.finish()
    # multiprocessing would wait for threads and processes of the user's own, before it ends this one
    Finalize(None, lifeline.leave, args=(ExitCode.COMPLETED,), exitpriority=0)


OnEnd = Callable[[Job, str | None], None]
"""Called when a signal ends a run: with the job as all agreed on it, and who failed, or None where nobody did."""


def joined(job: Job, show: Show, on_end: OnEnd) -> dict[str, Any] | None:
    """The life of a process that an outer launcher started, until it ends; the summary where the last stage is.

    Raises:
        KeyboardInterrupt: the run was broken off, and the last stage, which is elsewhere, has left its summary.
    """

    def on_signal(_number: int) -> None:
        peers, agreed = watchdog.peers, replace(job, run=watchdog.watched.run)
        if peers is None or not peers.is_first():
            time.sleep(_PRECEDENCE_SECONDS)
        on_end(agreed, peers.failure(job.placement.name) if peers else None)

    watchdog = Watchdog(watched(job), on_signal=on_signal)
    watchdog.start()
    result = main(job, watchdog, show)
    if result is not None and result["status"] == "diverged":
        return result  # not finished: the others, which wait for its messages, are to end when it does
    watchdog.activity.finish()
    if result is None and watchdog.gate.ended_after is not None:
        raise KeyboardInterrupt("broken off")
    return result


def watched(job: Job) -> Watched:
    """This worker, as its watchdog needs to know it."""
    limits = job.settings.launch
    rank = int(os.environ["RANK"])
    return Watched(
        rank, job.placement.num_processes, job.run, limits.hang_timeout, limits.start_timeout, limits.stop_timeout
    )


def main(job: Job, watchdog: Watchdog, show: Show = lambda _record: None) -> dict[str, Any] | None:
    """Runs the stages of this process, which torch's launcher started; the summary where the last stage is.

    Ends the process with exit code 75 when a neighbor is lost.

    Raises:
        RunError: anything else was raised, by the user's code or ours; names the stage and the note with the traceback.
    """
    keep_freed_memory()
    activity = watchdog.activity
    try:
        with activity.wait("the other processes"):
            process, job = join(job)
    except LostStageError as error:
        FailureNote(FailureKind.LOST, str(error)).leave(job.run, watchdog.watched.process)
        watchdog.lose()
    if job.finished:
        dist.destroy_process_group()
        return None
    watchdog.meet(own_store(), job.run)
    if watchdog.tell is None:
        peers = Peers(watchdog.watched, own_store())
        with activity.wait("the other processes"):
            peers.meet(watchdog.heartbeat())
        watchdog.peers, watchdog.tell = peers, peers.exchange
    try:
        return _run_stages(job, process, show, watchdog)
    except BaseException as error:
        failure = Failure.of(error)
        note = FailureNote(FailureKind.FAILED, failure.line, failure.traceback)
        note.leave(job.run, process.rank)
        stage, file = job.placement.name(process.rank), job.run.failure_traceback(process.rank)
        raise RunError(f"{stage} {note.line}; traceback in {file}") from error


def _run_stages(job: Job, process: ProcessEnvironment, show: Show, watchdog: Watchdog) -> dict[str, Any] | None:
    activity = watchdog.activity
    activity.now("building the data set and the model")
    placement = process.placement
    parts = build_parts(job, process.stages, process.device, show)
    stages = build_stages(parts.chain, job.bounds, parts.training, process.stages)
    hooks = RunHooks(
        parts.on_step, lambda op: activity.now(str(op)), activity.now, activity.wait, activity.compute, parts.trace,
        watchdog.gate,
    )  # fmt: skip
    try:
        activity.now("connecting the stages")
        with activity.wait("the other processes"):
            executor = connect_stages(
                stages, parts.phases, hooks, parts.training.clip_norm, device_to_device=process.device_to_device
            )
        watchdog.begin()
        run = ProcessRun(job, parts, executor)
        watchdog.reports.own = run.trainer.own_reports
        result = run.train()
    except DivergedError as error:
        sent = zip(placement.stages_of, watchdog.stop_others(), strict=True)
        reports = [report or [{}] * len(expected) for expected, report in sent]
        return run.diverge(error, placement.in_order(reports))
    except LostStageError as error:
        FailureNote(FailureKind.LOST, str(error)).leave(job.run, process.rank)
        watchdog.lose()
    if watchdog.gate.ended_after is None:  # else messages are still expected that will never come
        dist.destroy_process_group()
    return result


@dataclass(frozen=True)
class RunParts:
    """The objects of a run that a process builds before it is connected to others.

    Attributes:
        progress: where a resumed run stood; empty for a fresh one.
        recorder: where the last stage is; None elsewhere.
        trace: the file of the operations' times; None for no trace.
    """

    data: Data
    chain: LayerChain
    phases: Sequence[Phase]
    training: Training
    progress: dict[str, Any]
    recorder: Recorder | None
    trace: TraceFile | None

    @property
    def on_step(self) -> OnStep:
        """Told the loss of each minibatch, where the last stage is."""
        return self.recorder.step if self.recorder else RunHooks().on_step


def build_parts(job: Job, stages: Sequence[int], device: torch.device, show: Show) -> RunParts:
    """The objects of a run in a process that has these stages."""
    lazy_compiler.install()
    torch.set_num_threads(job.threads)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    settings = job.settings
    data = build_data(settings)
    data.expect(job.labels)
    if settings.dataset.pin_memory and device.type == "cuda":
        data.pin()
    chain = build_chain(settings.model.target, data.dataset, settings.seed, **settings.model.build_options)
    phases = build_phases(settings, job.timetable, job.num_stages, job.segments)
    rate = build_rate(settings, job.timetable)
    progress = checkpoint.load_progress(job.resume) if job.resume else {}
    training = training_of(settings, data.dataset, rate, device)
    recorder = None
    if job.num_stages - 1 in stages:
        earlier = EarlierSteps(progress, checkpoint.load_history(job.resume) if job.resume else {})
        recorder = Recorder(_recorded(job, data, training.loss, LearningRates(rate, phases)), earlier, show)
    trace = TraceFile(job.run, stages[0], progress.get("step", 0)) if settings.trace else None
    return RunParts(data, chain, phases, training, progress, recorder, trace)


def _recorded(job: Job, data: Data, loss: Loss, rates: LearningRates) -> RecordedRun:
    settings = job.settings
    return RecordedRun(
        job.run,
        len(data.train),
        data.train.size_of,
        rates,
        settings.log.every_steps,
        simulated=settings.executor.simulated,
        counts_tokens=counts_tokens(loss),
        config=settings.stored,
        hyperparameters=values_set(settings.stored, settings.choices),
    )


class ProcessRun:
    """A run in one process, from the checkpoint that it continues to its summary.

    Args:
        job: what to run.
        parts: what it needs.
        executor: of the stages of this process.
    """

    def __init__(self, job: Job, parts: RunParts, executor: Executor) -> None:
        self._job = job
        self._parts = parts
        # in training, the modules compute with other tensors in the place of their parameters
        self._aliases = parts.chain.aliases()
        self._executor = executor
        self._aliases = parts.chain.aliases()  # as long as the modules still hold the tensors that they share
        self._writer = Writer(executor.rank, executor.exchange, coordinates=parts.recorder is not None)
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
            decoder=self._decoder,
        )

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
                checkpoint.restore(stage, self._job.resume, self.trainer.step)
        recorder = self._parts.recorder
        if recorder is not None:
            recorder.start()
        if self._job.settings.checkpoint.at_start and not self.trainer.step:
            self._save(0)
        reports: Sequence[dict[str, Any]] = self.trainer.run()
        idle = self._parts.progress and self.trainer.step == self._parts.progress["step"]
        if idle and not self.trainer.interrupted:
            reports = self._repeated_end()
        result = None
        if recorder is not None:
            ended = summary_of_interrupted if self.trainer.interrupted else summary_of_completed
            result = self._finish(recorder, ended(self._job, recorder, reports, self.trainer.reached))
        if self.trainer.interrupted:
            self._executor.agree(None)  # none leaves before there is a summary: its launcher would end the others
        return result

    def _repeated_end(self) -> Sequence[dict[str, Any]]:
        """The end of a run that had done all its steps before: what was measured of its stages then."""
        if self._job.resume is not None and self._job.resume.parent != self._job.run.checkpoints.resolve():
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
        result = {**result, "extra_drains": self.trainer.extra_drains}
        if self._decoder is not None:
            result["metric_signatures"] = self._decoder.signatures
        if self._parts.trace is not None:
            self._parts.trace.close()
            assemble(job.run, job.num_stages)
        recorder.close(result)
        summary.write(job.run, result)
        return result

    def _save(self, step: int) -> None:
        self._executor.hooks.on_progress(f"writing the checkpoint of step {step}")
        recorder, began = self._parts.recorder, time.perf_counter()
        checkpoint_writer.save(
            self._job.run.checkpoint(step),
            self._tensors(),
            self._progress(step),
            self._writer,
        )
        if self._writer.coordinates:
            remove_superfluous(self._job.run, self._job.settings.checkpoint)
        if recorder is not None:
            recorder.clock.spend("checkpoint_s", time.perf_counter() - began)

    def _tensors(self) -> dict[str, Tensor]:
        tensors = self._parts.recorder.history() if self._parts.recorder else {}
        for stage in self._executor.stages:
            tensors.update(checkpoint.stage_tensors(stage))
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
            "aliases": self._aliases,
            "untied": self._parts.chain.untied,
            **self._job.head(),
            **record,
        }
