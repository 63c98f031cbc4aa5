"""The model in its stages, and checks of what they share and what their forwards and backwards read."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from pipetrain.engine.arithmetic import ComputeOptions
from pipetrain.engine.executors.pipeline_rules import Phase, PipelineRules
from pipetrain.engine.models.chain import LayerChain
from pipetrain.engine.models.stateful_layer import stateful_layers
from pipetrain.engine.models.ties import Tie, ties_between
from pipetrain.engine.program.planned_operations import rebinds_weights
from pipetrain.engine.schedules import ListSchedule, Replicas, Schedule
from pipetrain.engine.tensors import Tensors
from pipetrain.graph.layer_trials import check_forwards, check_in_place
from pipetrain.graph.module_checks import check_memory
from pipetrain.graph.reread_trials import check_recomputation, weight_derived_layers
from pipetrain.runner.config.phases import PhaseSettings
from pipetrain.runner.partition.finegrained import check_tied_units
from pipetrain.runner.partition.run_plan import Plan


@dataclass(frozen=True)
class StagedModel:
    """The model of a run in its stages, and what they do in each phase."""

    chain: LayerChain
    plan: Plan
    phases: Sequence[Phase]

    @property
    def schedules(self) -> list[Schedule]:
        """The schedule of each phase."""
        return [phase.rules.schedule for phase in self.phases]

    @property
    def synchronous(self) -> bool:
        """True if all schedules are."""
        return all(schedule.synchronous for schedule in self.schedules)

    @property
    def unlisted(self) -> Schedule | None:
        """The first schedule without lists of operations; None if all have them."""
        return next((schedule for schedule in self.schedules if not isinstance(schedule, ListSchedule)), None)

    @property
    def replicas(self) -> Replicas:
        """The replicas of each stage, the same in all phases."""
        return self.phases[0].rules.replicas

    @cached_property
    def ties(self) -> Sequence[Tie]:
        """The weights of which several stages hold copies; none if stages are of single weights."""
        return () if self.plan.finegrained else ties_between(self.chain, self.plan.bounds)

    @cached_property
    def carrying(self) -> list[str]:
        """The layers that carry their state from minibatch to minibatch."""
        layers = zip(self.chain.labels, self.chain.layers, strict=True)
        return [label for label, layer in layers if stateful_layers(layer)]


def check_shared_weights(staged: StagedModel, *, untie: bool) -> list[str]:
    """Notes on weights that layers share; `untie` is the setting."""
    chain = staged.chain
    if not staged.synchronous:
        check_memory(chain)
    if untie:
        own = [f"{name} is a weight of its own beside {was}" for name, was in chain.untied.items()]
        return [f"model.untie=true: {', '.join(own) or 'no layers share a weight, so nothing changes'}"]
    if staged.plan.finegrained and not staged.synchronous:
        check_tied_units(chain, staged.plan.bounds)
    return [f"{tie}, which sum its gradients before each update" for tie in staged.ties]


def check_layers(staged: StagedModel, inputs: Tensors, arithmetic: ComputeOptions) -> list[str]:
    """Warnings of cuts without a gradient; raises as `check_forwards` and `check_in_place`."""
    whole = not staged.plan.finegrained
    cuts = [first for first, _ in staged.plan.bounds[1:]] if whole else []
    overlap = whole and any(_several_in_flight(phase.rules) for phase in staged.phases)
    notes, in_place = check_forwards(staged.chain, inputs, cuts, arithmetic, overlap=overlap)
    if in_place:
        check_in_place(staged.chain, inputs, cuts, in_place)
    return notes


def _several_in_flight(rules: PipelineRules) -> bool:
    """True if a forward of a stage may come between that of a microbatch and its backward."""
    schedule, D, N = rules.schedule, rules.num_stages, rules.num_microbatches
    if not isinstance(schedule, ListSchedule):
        return D > 1 or N > 1
    return any(schedule.in_flight(r, D, N) > 1 for r in range(D))


def changing_method(settings: Sequence[PhaseSettings], phases: Sequence[Phase]) -> str | None:
    """Name of the first method whose backward may read other weights than its forward; None if no method does."""
    named = zip(phases, settings, strict=True)
    return next((chosen.choices["method"] for phase, chosen in named if _backward_reads_others(phase.rules)), None)


def _backward_reads_others(rules: PipelineRules) -> bool:
    if rules.schedule.synchronous:
        return False
    minibatches = rules.steady + 2
    some = sorted({0, rules.num_stages // 2, rules.num_stages - 1})
    return any(rebinds_weights(rules.planned(rules.replicas.workers_of(r)[0], minibatches)) for r in some)


def check_rereads(staged: StagedModel, inputs: Tensors, arithmetic: ComputeOptions, changing: str | None) -> list[str]:
    """A warning of layers that save tensors of their weights, if the method `changing` reads others in backwards."""
    layers = [] if changing is None else weight_derived_layers(staged.chain, inputs, arithmetic)
    if staged.phases[0].rules.segments is not None:  # as in all phases
        check_recomputation(staged.chain, inputs)
    if not layers:
        return []
    named = ", ".join(layers)
    saving = f"layer {named} saves a tensor derived from its weights; the backward pass will use it"
    if len(layers) > 1:
        saving = f"layers {named} save tensors derived from their weights; the backward pass will use them"
    return [f"warning: {saving} unchanged although method={changing} asks for another weight version"]
