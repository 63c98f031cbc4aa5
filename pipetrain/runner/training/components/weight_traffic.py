"""Memory traffic of the weights at each minibatch, forward and backward aside, in passes over every weight."""

import functools
import operator
from collections.abc import Callable, Sequence

import torch
from torch import nn
from torch.optim import Optimizer

from pipetrain.engine.errors import ConfigError
from pipetrain.engine.executors.pipeline_rules import Phase, PipelineRules
from pipetrain.engine.optim.prediction import known_rule
from pipetrain.engine.program.planned_operations import Activations
from pipetrain.engine.schedules import Kind, ListSchedule
from pipetrain.engine.weights.average import PASSES
from pipetrain.graph.layer_costs import WeightPasses
from pipetrain.runner.config.optimizer import OptimizerSettings
from pipetrain.runner.config.settings import Settings
from pipetrain.runner.training.components.optimizer import build_torch_optimizer

_COPY = 2
_ACCUMULATION = 3
"""Passes for accumulating the gradient of one more microbatch."""
_MICROBATCH = 3 + _ACCUMULATION
"""Passes of one more microbatch: forward and backward read the weight, and its gradient is written and accumulated."""
_MANY = 256
_UNFUSED = 3
"""A step that is a loop over operations makes about so many times the passes of a fused one."""


def weight_memory_traffic(
    phases_on: Callable[[int], Sequence[Phase]], optimizer_settings: OptimizerSettings
) -> WeightPasses:
    """The passes of each stage, averaged over the steps of all phases, by the number of stages, as are the phases."""

    @functools.cache  # asked for by the cuts and by the plan
    def passes(num_stages: int) -> list[float]:
        phases = phases_on(num_stages)
        optimizer = _optimizer_of_matrix(optimizer_settings)
        steps = [phase.end - phase.start for phase in phases]
        by_stage = zip(*(passes_under(phase.rules, optimizer) for phase in phases), strict=True)
        return [sum(map(operator.mul, passes, steps)) / max(1, sum(steps)) for passes in by_stage]

    return passes


def passes_of_run(settings: Settings, rules: PipelineRules) -> list[int]:
    """The passes that a measured forward and backward leave out, of each stage under a phase's rules.

    They are those of the update, of the method, of `train.ema`, and of the accumulation of gradients.
    """
    optimizer = _optimizer_of_matrix(settings.optimizer)
    more = PASSES if settings.train.ema is not None else 0
    more += _ACCUMULATION * (rules.num_microbatches - 1)
    return [more + each for each in passes_of_updates(rules, optimizer)]


def _optimizer_of_matrix(settings: OptimizerSettings) -> Optimizer:
    matrix, vector = nn.Parameter(torch.zeros(2, 2)), nn.Parameter(torch.zeros(2))
    try:
        return build_torch_optimizer(settings, [matrix])
    except ConfigError:  # as of optimizers that need weights of both kinds
        return build_torch_optimizer(settings, [matrix, vector])


def passes_under(rules: PipelineRules, optimizer: Optimizer) -> list[int]:
    """The passes of each stage under one schedule and method; `optimizer` is of a matrix, and makes a step."""
    of_microbatches = _MICROBATCH * (rules.num_microbatches - 1)
    return [of_microbatches + each for each in passes_of_updates(rules, optimizer)]


def passes_of_updates(rules: PipelineRules, optimizer: Optimizer) -> list[int]:
    """The same without the passes for further microbatches: only those of the optimizer's step and of the method."""
    of_any, stages = update_passes(optimizer), range(rules.num_stages)
    if not isinstance(rules.schedule, ListSchedule):
        return [of_any for _ in stages]
    last = rules.num_stages - 1
    # so many stages have long lists, and those in the middle pass over their weights alike
    looked_at = {r: r for r in stages} if last < _MANY else {r: min(r, 1) if r < last - 1 else r for r in stages}
    of_method = {r: _of_method(rules, r, optimizer) for r in sorted(set(looked_at.values()))}
    return [of_any + of_method[looked_at[r]] for r in stages]


def update_passes(optimizer: Optimizer) -> int:
    """Passes of one step of an optimizer of a matrix: over the weight, its gradient and every state of its size."""
    weight = next(weight for group in optimizer.param_groups for weight in group["params"])
    weight.grad = torch.zeros_like(weight)
    try:
        optimizer.step()
    except Exception:  # one that wants more than gradients says so when the run starts
        return _UNFUSED * 3
    values = optimizer.state[weight].values()
    states = [value for value in values if isinstance(value, torch.Tensor) and value.shape == weight.shape]
    return (3 + 2 * len(states)) * (1 if optimizer.defaults.get("fused") else _UNFUSED)


def _of_method(rules: PipelineRules, stage: int, optimizer: Optimizer) -> int:
    """Passes of copies, predictions and corrections in a steady-state round, from the operation list of a replica."""
    worker, count = rules.replicas.workers_of(stage)[0], rules.replicas.counts[stage]
    t = -(-(rules.steady + 1) // count)
    listed = rules.planned(worker, 2 * (t + 1) * count)
    planned = [each for each in listed if rules.replicas.round_of(stage, each.operation.minibatch) == t]
    rule = known_rule(optimizer)
    delta = rule.passes if rule is not None and rules.method.needs_prediction else 0
    statistic = rules.method.statistic(rules.contexts[stage], {})
    kept = any(each.operation.kind is Kind.UPDATE and not each.releases for each in planned)
    passes = _COPY if kept or statistic is not None else 0
    passes += statistic.passes if statistic is not None else 0
    for each in planned:
        # a backward with kept activations reads what its forward has transformed
        shared = each.operation.kind is Kind.BACKWARD and each.activations is Activations.KEPT
        if each.read.held(each.operation.kind).transform is None and each.read.transform is not None and not shared:
            passes += each.read.transform.passes + delta
    return passes
