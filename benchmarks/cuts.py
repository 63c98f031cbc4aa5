"""Where the benchmarks cut their models: as `partition=even` and `partition=auto` of a run would."""

import torch
from torch import nn
from workloads import Workload

from pipetrain.engine.executors.pipeline import Bounds
from pipetrain.engine.executors.pipeline_rules import PipelineRules
from pipetrain.engine.losses import CrossEntropy
from pipetrain.engine.processes import usable_cores
from pipetrain.planning.profile.profile import Profile
from pipetrain.planning.profiling.auto_partition import AutoPartition, plan_by
from pipetrain.planning.profiling.layer_times import Measuring, measured_model
from pipetrain.planning.profiling.link_speed import measured_link
from pipetrain.runner.config.composition import composed
from pipetrain.runner.partition.rules import Even
from pipetrain.runner.partition.run_plan import make_plan
from pipetrain.runner.training.components.machine import device_at
from pipetrain.runner.training.components.weight_traffic import passes_under


def sgd(parameters: list[nn.Parameter], lr: float = 0.01) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=lr, momentum=0.9, weight_decay=5e-4, fused=True)


def even_bounds(workload: Workload, rules: PipelineRules) -> Bounds:
    """The stages that `partition=even` makes under these rules."""
    passes = passes_under(rules, sgd([nn.Parameter(torch.zeros(2))]))
    example = workload.pictures(1).tensors[:1]
    placement = rules.placement if rules.placement.several else None
    plan = make_plan(workload.chain(), Even(rules.num_stages, placement=placement), example, lambda _stages: passes)
    return [(stage.first, stage.last) for stage in plan.stages]


def measured_profile(workload: Workload, device: str) -> Profile:
    """The times of the layers on this machine, one thread, and the speed of a link between two processes."""
    images, labels = workload.pictures(1).tensors
    chain, how = workload.chain(), Measuring(CrossEntropy(), device=device_at(device, 0))
    (layers, update_speed), link = measured_model(chain, ((images,), (labels,)), how), measured_link(device)
    return Profile(
        layers,
        tuple((i, i + 1) for i in range(len(layers) - 1)),
        workload.batch,
        link.bytes_per_s,
        {"device": device, "threads": how.threads, "cores": usable_cores()},
        message_work=link.message_work,
        update_bytes_per_s=update_speed,
    )


def auto_bounds(profile: Profile, method: str, stages: int, *chosen: str) -> Bounds:
    """The stages that `partition=auto` makes with this profile under a method, with further settings `chosen`."""
    optimizer = ("optimizer=sgd", "optimizer.momentum=0.9", "+optimizer.fused=true")
    settings = composed([f"method={method}", "partition=auto", f"partition.stages={stages}", *optimizer, *chosen])
    plan = plan_by(settings, AutoPartition(stages), profile)
    return [(stage.layers[0], stage.layers[-1] + 1) for stage in plan.stages]
