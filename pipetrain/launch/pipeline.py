"""The stages and the executor of a process, put together from what a job says."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from pipetrain.config.settings import Settings
from pipetrain.executors.base import Executor
from pipetrain.executors.hooks import RunHooks
from pipetrain.executors.phase import Phase
from pipetrain.executors.pipeline import Training, build_finegrained_pipeline, build_pipeline
from pipetrain.models.chain import LayerChain
from pipetrain.run.build.loss import build_loss
from pipetrain.run.build.model import build_arithmetic
from pipetrain.run.build.optimizer import build_torch_optimizer
from pipetrain.run.job import Job


def training_of(settings: Settings, dataset: Any, rate: Callable[[int], float], device: torch.device) -> Training:
    """How every stage of a run trains on a data set, on `device`."""
    return Training(
        optimizer=partial(build_torch_optimizer, settings.optimizer),
        rate=rate,
        loss=build_loss(settings, dataset),
        clip_norm=settings.optimizer.clip_norm,
        seed=settings.seed,
        device=device,
        arithmetic=build_arithmetic(settings.train),
    )


def build_single_process(
    job: Job, chain: LayerChain, phases: Sequence[Phase], training: Training, hooks: RunHooks
) -> Executor:
    """All stages of a run in this process: of layers each, or of single weights."""
    if not job.finegrained:
        return build_pipeline(chain, job.bounds, phases, training, hooks)
    boundaries = job.settings.train.recompute_boundaries
    return build_finegrained_pipeline(chain, job.bounds, phases, training, hooks, boundaries)
