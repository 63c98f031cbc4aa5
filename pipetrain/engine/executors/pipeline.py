"""From a layer chain to stages, and from stages to the executor that trains them."""

import copy
from collections.abc import Sequence
from importlib import import_module
from typing import Protocol

from pipetrain.engine.errors import ConfigError
from pipetrain.engine.executors.base import Executor
from pipetrain.engine.executors.distributed import DistributedExecutor
from pipetrain.engine.executors.finegrained import FinegrainedExecutor, ParameterStage, WholeModel
from pipetrain.engine.executors.hooks import RunHooks
from pipetrain.engine.executors.messages.transport import Transport
from pipetrain.engine.executors.pipeline_rules import Phase, PipelineRules
from pipetrain.engine.executors.simulated import SimulatedExecutor
from pipetrain.engine.losses import on_device
from pipetrain.engine.models.chain import LayerChain
from pipetrain.engine.models.ties import ties_between
from pipetrain.engine.models.weight_units import names_of, weight_units
from pipetrain.engine.stage.base import Training
from pipetrain.engine.stage.message_ends import MessageEnds
from pipetrain.engine.stage.module import StageModule
from pipetrain.engine.stage.stage import Stage

Bounds = Sequence[tuple[int, int]]
"""(first layer, last layer exclusive) of each stage."""
_NO_HOOKS = RunHooks()


class Messages(Protocol):
    """The formats of a pipeline's messages: `pipetrain.zoo.messages` has them."""

    def check(self, rules: PipelineRules) -> None:
        """Raises a ConfigError if a pipeline with these rules cannot have them."""

    def ends_of(self, stage: Stage, *, before: bool, behind: bool) -> MessageEnds:
        """The ends of a stage with a link to the stage before, to the one behind, or both."""


def build_pipeline(
    chain: LayerChain,
    bounds: Bounds,
    rules: PipelineRules | Sequence[Phase],
    training: Training,
    hooks: RunHooks = _NO_HOOKS,
    messages: Messages | None = None,
) -> SimulatedExecutor:
    """A pipeline with all stages in this process, ready to train and evaluate.

    Replicas of a stage are adjacent in its `stages`. `rules` hold for the whole run, or are its phases. Without
    `messages`, these are plain.

    Raises:
        ConfigError: stages share a weight, and a schedule is asynchronous, or stages have replicas.
    """
    phases = _phases(rules)
    replicas = phases[0].rules.replicas
    # a stage keeps the layers of its chain, so every further replica needs a copy
    chains = [chain, *(copy.deepcopy(chain) for _ in range(1, max(replicas.counts)))]
    stages = []
    for replica, each in enumerate(chains):
        indices = [r for r, count in enumerate(replicas.counts) if replica < count]
        stages += build_stages(each, bounds, training, indices, replica)
    stages.sort(key=lambda stage: (stage.index, stage.replica))
    _check_ties(stages, phases)
    _attach(messages, stages, phases)
    return SimulatedExecutor(stages, phases, hooks, training.clip_norm)


def build_stages(
    chain: LayerChain, bounds: Bounds, training: Training, indices: Sequence[int] | None = None, replica: int = 0
) -> list[Stage]:
    """All stages of a pipeline, or those at `indices`, as the replica with this index."""
    ties = ties_between(chain, bounds)
    return [
        Stage(r, chain, bounds[r], training, replica, ties)
        for r in (range(len(bounds)) if indices is None else indices)
    ]


def connect_stages(
    stages: Sequence[Stage],
    rules: PipelineRules | Sequence[Phase],
    hooks: RunHooks,
    clip_norm: float | None,
    transport: Transport | None = None,
    messages: Messages | None = None,
) -> Executor:
    """Executor of the stages of this process, from `build_stages`, connected to the other processes.

    torch.distributed is initialized. Without a transport, from `agreed_transport`, messages go through host memory.
    Without `messages`, they are plain.

    Raises:
        ConfigError: stages share a weight, and a schedule is asynchronous.
    """
    phases = _phases(rules)
    _check_ties(stages, phases)
    _attach(messages, stages, phases)
    path = phases[0].rules.schedule.executor
    if path is None:
        return DistributedExecutor(stages, phases, hooks, clip_norm, transport)
    module, _, name = path.rpartition(".")
    executor: Executor = getattr(import_module(module), name)(stages, phases, hooks, clip_norm, transport)
    return executor


def build_finegrained_pipeline(
    chain: LayerChain,
    bounds: Bounds,
    rules: PipelineRules | Sequence[Phase],
    training: Training,
    hooks: RunHooks = _NO_HOOKS,
    recompute_boundaries: Sequence[int] | None = None,
) -> FinegrainedExecutor:
    """A pipeline whose stages are of single weights.

    `bounds` are (first weight unit, last weight unit exclusive) of each stage, see `weight_units`, and
    `recompute_boundaries` first layers of segments that recompute; None for no recomputation.
    """
    units = weight_units(chain)
    module = StageModule(chain.layers, 0, training.seed, training.arithmetic, training.device, ends=True)
    stages = [
        ParameterStage(r, names_of(units[first:last]), module, training) for r, (first, last) in enumerate(bounds)
    ]
    segments = None if recompute_boundaries is None else tuple(recompute_boundaries)
    model = WholeModel(module, on_device(training.loss, training.device), segments)
    return FinegrainedExecutor(stages, model, _phases(rules), hooks, training.clip_norm)


def _check_ties(stages: Sequence[Stage], phases: Sequence[Phase]) -> None:
    if stages[0].ties and phases[0].rules.replicas.several:
        raise ConfigError(
            f"{stages[0].ties[0]}, and replicas do not add up such gradients; leave its layers in one stage, or give "
            "each a separate weight with model.untie=true"
        )
    schedule = next((phase.rules.schedule for phase in phases if not phase.rules.schedule.synchronous), None)
    if stages[0].ties and schedule is not None:
        raise ConfigError(
            f"{stages[0].ties[0]}, and the asynchronous schedule {schedule.name} cannot keep them equal; leave its "
            "layers in one stage, or give each a separate weight"
        )


def _attach(messages: Messages | None, stages: Sequence[Stage], phases: Sequence[Phase]) -> None:
    """Gives the stages the ends of their links to other processes."""
    if messages is None:
        return
    for phase in phases:
        messages.check(phase.rules)
    crosses, last = phases[0].rules.placement.crosses, phases[0].rules.num_stages - 1
    for stage in stages:
        r = stage.index
        stage.messages = messages.ends_of(stage, before=r > 0 and crosses(r - 1), behind=r < last and crosses(r))


def _phases(rules: PipelineRules | Sequence[Phase]) -> Sequence[Phase]:
    return [Phase(rules)] if isinstance(rules, PipelineRules) else rules
