"""A training session: one process's part of a run, in chronological order: restore, train, save, summarize."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch

from pipetrain.data.loader import keeping_readers
from pipetrain.engine.device_queue import queues
from pipetrain.engine.errors import DivergedError, LostStageError
from pipetrain.engine.executors.base import Executor
from pipetrain.engine.executors.hooks import RunHooks
from pipetrain.engine.executors.messages.transport import Transport
from pipetrain.engine.executors.pipeline import build_finegrained_pipeline, build_pipeline, build_stages, connect_stages
from pipetrain.engine.losses import counts_tokens
from pipetrain.engine.stage.base import Training
from pipetrain.engine.stage.staleness import MeasuredMinibatches
from pipetrain.runner.tracking import summary
from pipetrain.runner.tracking.run_recorder import RecordedRun, Recorder, Show
from pipetrain.runner.tracking.trace_writer import TraceFile, assemble
from pipetrain.runner.training.checkpoint import contents, store
from pipetrain.runner.training.checkpoint.progress import TrainingState
from pipetrain.runner.training.checkpoint_saver import CheckpointSaver
from pipetrain.runner.training.compilation import compile_ahead
from pipetrain.runner.training.components.arithmetic import build_arithmetic
from pipetrain.runner.training.components.averaging import build_averaging
from pipetrain.runner.training.components.callbacks import build_callbacks
from pipetrain.runner.training.components.learning_rate import rates_by_stage
from pipetrain.runner.training.components.machine import device_at, give_back_free_memory
from pipetrain.runner.training.components.messages import build_messages
from pipetrain.runner.training.components.optimizer import build_optimizers
from pipetrain.runner.training.job import Job
from pipetrain.runner.training.outcome import summary_of
from pipetrain.runner.training.trainer import Trainer
from pipetrain.runner.training.whole_model import whole_model_metrics
from pipetrain.runner.training.worker import Components, build_data_in_worker, build_in_worker, keep_weights_of

_LAST_SECONDS = 30.0
"""Time that a failing run gives a checkpoint to become complete."""


class TrainingSession:
    """A run in one process, from the checkpoint that it continues to its summary; see `training_session`."""

    def __init__(
        self,
        job: Job,
        components: Components,
        hooks: RunHooks,
        show: Show,
        rank: int | None,
        transport: Transport | None,
    ) -> None:
        self._job = job
        self.components = components
        settings, placement = job.settings, job.placement
        log, every = settings.log, settings.log.staleness_every_steps
        device = device_at(job.device, 0) if transport is None else transport.device
        progress = store.load_progress(job.resume) if job.resume else {}
        state = TrainingState.of(progress, job.timetable, settings.train, settings.checkpoint.metric)
        log, every = settings.log, settings.log.staleness_every_steps
        training = Training(
            optimizer=build_optimizers(settings, job.timetable, len(job.plan.bounds)),
            loss=self.components.loss,
            clip_norm=settings.optimizer.clip_norm,
            seed=settings.seed,
            device=device,
            arithmetic=build_arithmetic(settings.train),
            staleness=None if every is None else MeasuredMinibatches(every, with_gradients=log.staleness_gradient),
            averaging=build_averaging(settings, components.phases[0].rules.replicas, job.timetable),
        )
        self.recorder: Recorder | None = None
        if rank is None or rank == placement.of_last_stage:
            # decided by the settings of this run, not by those under which the checkpoint was saved
            progress = {**progress, "evaluation_due": state.evaluation_due}
            self.recorder = self._build_recorder(training, progress, show)
            hooks = replace(hooks, on_step=self.recorder.step)
        self._trace = (
            TraceFile(job.run, rank or 0, state.step, 1 if rank is None else job.placement.num_processes)
            if settings.trace
            else None
        )
        self._executor = self._build_executor(training, replace(hooks, trace=self._trace), rank, transport)
        self._checkpoints = CheckpointSaver(job, self.components, self._executor, self.recorder)
        dataset, chain = self.components.data.dataset, self.components.chain
        decoder = whole_model_metrics(settings, dataset, chain, device, hooks)
        self.trainer = Trainer(job, self._executor, self.components, state, self._checkpoints, self.recorder, decoder)
        if state.evaluation_due and job.resumes_itself:
            self.trainer.saved_at = state.step

    def _build_recorder(self, training: Training, progress: Mapping[str, Any], show: Show) -> Recorder:
        job, components = self._job, self.components
        loader = components.data.train
        recorded = RecordedRun(
            job.run,
            job.settings,
            len(loader),
            loader.size_of,
            rates_by_stage(training.optimizer.rate, components.phases),
            counts_tokens=counts_tokens(components.loss),
            lower_is_better=job.lower_is_better,
            sweep=job.sweep,
            callbacks=build_callbacks(job.settings.log.to, job.settings.callbacks),
            device=training.device,
        )
        history = contents.load_history(job.resume) if job.resume else {}
        return Recorder(recorded, progress, history, show)

    def _build_executor(
        self, training: Training, hooks: RunHooks, rank: int | None, transport: Transport | None
    ) -> Executor:
        """The executor of all stages, or of those of one process, connected to the other processes."""
        chain, plan, phases = self.components.chain, self._job.plan, self.components.phases
        messages = build_messages(self._job.settings, self._job.takes_gradient)
        if rank is not None:
            placement = self._job.placement
            stages = build_stages(chain, plan.bounds, training, placement.stages_of[rank], placement.replica_of(rank))
            keep_weights_of(stages, chain)
            give_back_free_memory()
            direct = transport is not None and transport.direct
            if direct and training.arithmetic.compiled and phases[0].rules.schedule.executor is None:
                data = self.components.data
                with self._computing():
                    compile_ahead(stages[0], phases, data.train, data.evaluation, hooks)
            hooks.on_progress("connecting the stages")
            with hooks.waiting("the other processes"):
                return connect_stages(stages, phases, hooks, training.clip_norm, transport, messages)
        if not plan.finegrained:
            return build_pipeline(chain, plan.bounds, phases, training, hooks, messages)
        boundaries = self._job.settings.train.recompute_boundaries
        return build_finegrained_pipeline(chain, plan.bounds, phases, training, hooks, boundaries)

    def train(self) -> dict[str, Any] | None:
        """Restores, trains and saves; the summary where the last stage is.

        Raises:
            DivergedError: in the process of the last stage.
        """
        try:
            with self._computing():
                return self._train()
        except DivergedError:
            raise  # `diverge` ends the run
        except BaseException as error:
            if self.recorder is not None:
                self.recorder.fail(error)
            raise

    @contextmanager
    def _computing(self) -> Iterator[None]:
        """Context of all that layers compute."""
        # a program, or a user's module when it is imported, may have set these otherwise; a cache would serve a layer
        # that has an autocast of its own the casts of its first weights, as none inside another is emptied
        with torch.enable_grad(), torch.autocast(self._job.device, enabled=False, cache_enabled=False):
            yield

    def _train(self) -> dict[str, Any] | None:
        job, trainer, state, recorder = self._job, self.trainer, self.trainer.state, self.recorder
        self._load_weights()
        if recorder is not None:
            recorder.start()
        self._checkpoints.clock.start()
        if job.settings.checkpoint.at_start and not state.step:
            self._checkpoints.save(state)
        started_at, reports = state.step, self._trained()
        if job.resume is not None and state.step == started_at and not trainer.interrupted:
            if not job.resumes_itself and trainer.saved_at is None:
                self._checkpoints.save(state)
            # all steps were done before; the measurements are those of then, unless an epoch or the stages changed
            if len(state.measured) == len(job.plan.stages):
                reports = state.measured
        self._checkpoints.finish()
        result = None
        if recorder is not None:
            folder, ending = job.run.checkpoint(state.step), dict[str, Any]()
            if not trainer.interrupted:
                weights = summary.weights_sha256(contents.weights_in_order(folder))
                ending = {"status": "completed", "weights_sha256": weights}
            else:
                saved = {"checkpoint": str(folder.relative_to(job.run.path))} if state.step else {}
                ending = {"status": "interrupted", "reason": f"a signal after step {state.step}", **saved}
            result = self._finish(recorder, reports, **ending)
        if trainer.interrupted:
            # all wait for the summary: a launcher ends the other processes after the first
            self._executor.broadcast_from_last(None)
        return result

    def _load_weights(self) -> None:
        """Loads the checkpoint to continue from, or the initial weights, if there are any."""
        job, hooks, stages = self._job, self._executor.hooks, self._executor.stages
        if job.resume is not None:
            hooks.on_progress(f"loading {job.resume.name}")
            contents.restore(stages, job.resume, self.trainer.state.step)
        elif job.initial_weights is not None:
            hooks.on_progress(f"loading {job.initial_weights.path.name}")
            for stage in stages:
                job.initial_weights.load_into(stage)

    def _trained(self) -> Sequence[dict[str, Any]]:
        try:
            return self.trainer.run()
        except Exception as error:
            lost = isinstance(error, LostStageError)  # no process is left to complete a checkpoint with
            self._checkpoints.settle(0 if lost else _LAST_SECONDS)
            raise

    def diverge(self, error: DivergedError, reports: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """Ends the run whose recorder raised `error`; raises a DivergedError if no recorder of this process did."""
        if self.recorder is None:
            raise error
        ending = {"status": "diverged", "diverged_at_step": error.step, "reason": str(error)}
        return self._finish(self.recorder, reports, **ending)

    def _finish(self, recorder: Recorder, reports: Sequence[dict[str, Any]], **ending: Any) -> dict[str, Any]:
        """Writes the summary, and closes the files of the run."""
        job, state, transport = self._job, self.trainer.state, self._executor.transport
        self._executor.hooks.on_progress("writing the summary")
        result = summary_of(job, recorder, reports, state.reached, **ending)
        if transport is None or job.placement.num_processes == 1:
            result |= {"transport": "none", "transport_reason": "one process"}
        else:
            result |= {"transport": transport.backend, "transport_reason": transport.reason}
        result["extra_drains"] = state.extra_drains
        if state.stopping is not None and (reason := state.stopped_early(job.timetable)):
            result |= {"reason": reason, "early_stopping": state.stopping.fields()}
        if self.trainer.decoder is not None:
            result["metric_signatures"] = state.signatures
        if self._trace is not None:
            self._trace.close()
            assemble(job.run, job.placement)
        summary.write(job.run, result)
        recorder.close(result)
        return result


@contextmanager
def training_session(
    job: Job, hooks: RunHooks, show: Show, rank: int | None = None, transport: Transport | None = None
) -> Iterator[TrainingSession]:
    """A session in this process. The processes that read its samples end with the context.

    They are forked before the model is built, whose first weights they would keep in memory, and before the stages
    connect: a process that uses NCCL cannot be forked safely.

    Args:
        job: what to run.
        hooks: callbacks of this process; the session adds those for losses and trace.
        show: is given every record, in the process of the last stage.
        rank: number of this process; None if it has all stages.
        transport: of tensors between the processes; None if this is the only one.

    Raises:
        RunError: the model has other layers than in preflight, or the data set other samples.
    """
    device = device_at(job.device, 0) if transport is None else transport.device
    data = build_data_in_worker(job, device)
    if job.settings.dataset.pin_memory and device.type == "cuda" and not (transport and transport.direct):
        # reads into page-locked memory, which it takes at any time: never while messages travel between devices
        data.train.pinned = data.evaluation.pinned = True
    data.train.stored = data.evaluation.stored = queues(device)
    last = len(job.plan.bounds) - 1
    stages = range(last + 1) if rank is None else job.placement.stages_of[rank]
    with keeping_readers([data.train, data.evaluation], inputs=0 in stages, targets=last in stages):
        components = build_in_worker(job, data, has_last_stage=last in stages)
        if rank is not None and job.placement.num_processes > 1 and {0, last}.intersection(stages):
            data.check_as_prepared(job.data)
        yield TrainingSession(job, components, hooks, show, rank, transport)
