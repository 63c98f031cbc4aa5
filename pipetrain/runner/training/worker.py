"""The objects of a run in one of its processes, which builds them from the job."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from pipetrain.data.libraries import lazy_compiler
from pipetrain.engine.errors import RunError
from pipetrain.engine.executors.pipeline_rules import Phase
from pipetrain.engine.losses import NO_METRICS, Loss, Metrics
from pipetrain.engine.models.chain import LayerChain
from pipetrain.engine.stage.stage import Stage
from pipetrain.runner.training.components.data import Data, build_data
from pipetrain.runner.training.components.loss import build_loss, build_metrics
from pipetrain.runner.training.components.model import build_model
from pipetrain.runner.training.components.pipeline import build_planned_phases
from pipetrain.runner.training.job import Job


@dataclass(frozen=True)
class Components:
    """The objects that a process of a run trains with; `metrics` are in addition to those of the loss."""

    data: Data
    chain: LayerChain
    phases: list[Phase]
    loss: Loss
    metrics: Metrics


def build_data_in_worker(job: Job, device: torch.device) -> Data:
    """The data of a run in one of its processes, whose threads and device it sets first."""
    lazy_compiler.install()
    torch.set_num_threads(job.threads)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    data = build_data(job.settings)
    data.expect(job.labels, job.tokens)
    return data


def build_in_worker(job: Job, data: Data, *, has_last_stage: bool) -> Components:
    """The objects of a run in one of its processes, with the plan and the timetable of the job.

    Metrics, whose libraries may take seconds to import, are only built where the last stage is.

    Raises:
        RunError: the model has other layers than in preflight.
    """
    settings, plan = job.settings, job.plan
    chain = build_model(settings, data.dataset)
    if not plan.finegrained and len(chain) != plan.bounds[-1][1]:
        raise RunError(
            f"model: {len(chain)} layers here, but {plan.bounds[-1][1]} when the run was prepared; its code must "
            "build the same layers in every process"
        )
    return Components(
        data,
        chain,
        phases=build_planned_phases(settings, job.timetable, plan, chain),
        loss=build_loss(settings.loss, data.dataset),
        metrics=build_metrics(settings.metrics) if has_last_stage else NO_METRICS,
    )


def keep_weights_of(stages: Sequence[Stage], chain: LayerChain) -> None:
    """Frees the parameters of a chain that none of these stages holds: they keep their shapes, on the meta device.

    Buffers stay. Few are large, and the model that metrics assemble needs those that no state dict has.
    """
    held = {parameter for stage in stages for parameter in stage.module.parameters()}
    shapes: dict[nn.Parameter, nn.Parameter] = {}
    for part in itertools.chain.from_iterable(module.modules() for module in (chain.module, *chain.layers)):
        for name, parameter in [*part.named_parameters(recurse=False, remove_duplicate=False)]:
            if parameter not in held and not parameter.is_meta:
                shape = nn.Parameter(torch.empty_like(parameter, device="meta"), parameter.requires_grad)
                setattr(part, name, shapes.setdefault(parameter, shape))
