"""The objects of a run that a worker builds from its job before it connects to the other workers."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from pipetrain.config.settings import Settings
from pipetrain.errors import RunError
from pipetrain.executors.base import Executor
from pipetrain.executors.hooks import OnStep, RunHooks
from pipetrain.executors.pipeline import build_finegrained_pipeline, build_pipeline
from pipetrain.executors.pipeline_rules import Phase
from pipetrain.libraries import lazy_compiler
from pipetrain.losses import NO_METRICS, Loss, Metrics, counts_tokens
from pipetrain.models.chain import LayerChain
from pipetrain.run.builders.data import Data, build_data
from pipetrain.run.builders.loss import build_loss, build_metrics
from pipetrain.run.builders.model import build_arithmetic, build_model
from pipetrain.run.builders.optimizer import LearningRates, build_rate, build_torch_optimizer
from pipetrain.run.builders.pipeline import build_phases
from pipetrain.run.checkpoint import store
from pipetrain.run.job import Job
from pipetrain.stage.base import Training
from pipetrain.tracking.run_recorder import RecordedRun, Recorder, Show
from pipetrain.tracking.stored_settings import values_set
from pipetrain.tracking.trace_writer import TraceFile


@dataclass(frozen=True)
class WorkerComponents:
    """The objects of a run that a process builds before it connects to other processes.

    Attributes:
        progress: where a resumed run stood; empty for a fresh one.
        metrics: of evaluations in addition to those of the loss, where the last stage is.
        recorder: where the last stage is; None elsewhere.
        trace: the file of the operations' times; None for no trace.
    """

    data: Data
    chain: LayerChain
    phases: Sequence[Phase]
    training: Training
    progress: dict[str, Any]
    metrics: Metrics
    recorder: Recorder | None
    trace: TraceFile | None

    @property
    def on_step(self) -> OnStep:
        """Told the loss of each minibatch, where the last stage is."""
        return self.recorder.step if self.recorder else RunHooks().on_step


def build_worker_components(
    job: Job, stages: Sequence[int], device: torch.device, show: Show, replica: int = 0
) -> WorkerComponents:
    """The objects of a run in a process that has these stages, or the replica of this number of one."""
    lazy_compiler.install()
    torch.set_num_threads(job.threads)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    settings = job.settings
    data = build_data(settings)
    data.expect(job.labels, job.tokens)
    if settings.dataset.pin_memory and device.type == "cuda":
        data.pin()
    chain = build_model(settings, data.dataset)
    if not job.finegrained and len(chain) != job.bounds[-1][1]:
        raise RunError(
            f"model: {len(chain)} layers here, but {job.bounds[-1][1]} when the run was prepared; its code must "
            "build the same layers in every process"
        )
    phases = build_phases(settings, job.timetable, job.num_stages, job.segments, job.replicas)
    rate = build_rate(settings, job.timetable)
    progress = store.load_progress(job.resume) if job.resume else {}
    training = _training(settings, data.dataset, rate, device)
    recorder, metrics = None, NO_METRICS
    if job.num_stages - 1 in stages:
        metrics = build_metrics(settings)
    if job.num_stages - 1 in stages and replica == 0:
        history = store.load_history(job.resume) if job.resume else {}
        recorded = _recorded(job, data, training.loss, LearningRates(rate, phases), metrics)
        recorder = Recorder(recorded, progress, history, show)
    trace = (
        TraceFile(job.run, job.placement.process_of(stages[0]) + replica, progress.get("step", 0))
        if settings.trace
        else None
    )
    return WorkerComponents(data, chain, phases, training, progress, metrics, recorder, trace)


def _recorded(job: Job, data: Data, loss: Loss, rates: LearningRates, metrics: Metrics) -> RecordedRun:
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
        lower_is_better=metrics.lower_is_better,
        hyperparameters=values_set(settings.stored, settings.choices),
    )


def _training(settings: Settings, dataset: Any, rate: Callable[[int], float], device: torch.device) -> Training:
    """Training options of every stage."""
    return Training(
        optimizer=partial(build_torch_optimizer, settings.optimizer),
        rate=rate,
        loss=build_loss(settings, dataset),
        clip_norm=settings.optimizer.clip_norm,
        seed=settings.seed,
        device=device,
        arithmetic=build_arithmetic(settings.train),
    )


def build_single_process(job: Job, components: WorkerComponents, hooks: RunHooks) -> Executor:
    """The executor of all stages in this process: stages of layers, or of single weights."""
    pipeline = (components.chain, job.bounds, components.phases, components.training, hooks)
    if not job.finegrained:
        return build_pipeline(*pipeline)
    return build_finegrained_pipeline(*pipeline, job.settings.train.recompute_boundaries)
