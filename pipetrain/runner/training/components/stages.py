"""Checks of the model in its stages: what they share, and what their forwards and backwards read."""

from collections.abc import Sequence

from pipetrain.engine.arithmetic import ComputeOptions
from pipetrain.engine.executors.pipeline_rules import Phase, PipelineRules
from pipetrain.engine.models.chain import LayerChain
from pipetrain.engine.models.ties import ties_between
from pipetrain.engine.program.planned_operations import rebinds_weights
from pipetrain.engine.schedules import ListSchedule
from pipetrain.engine.tensors import Tensors
from pipetrain.graph.layer_trials import check_forwards, check_in_place
from pipetrain.graph.module_checks import check_memory
from pipetrain.graph.reread_trials import check_recomputation, weight_derived_layers
from pipetrain.runner.config.phases import PhaseSettings
from pipetrain.runner.partition.finegrained import check_tied_units
from pipetrain.runner.partition.run_plan import Plan


def check_shared_weights(chain: LayerChain, plan: Plan, phases: Sequence[Phase], *, untie: bool) -> list[str]:
    """Notes on weights that layers share; `untie` is the setting.

    Raises:
        ConfigError: stages under an asynchronous schedule would share memory.
    """
    synchronous = all(phase.rules.schedule.synchronous for phase in phases)
    if not synchronous:
        check_memory(chain)
    if untie:
        own = [f"{name} is a weight of its own beside {was}" for name, was in chain.untied.items()]
        return [f"model.untie=true: {', '.join(own) or 'no layers share a weight, so nothing changes'}"]
    if not plan.finegrained:
        return [f"{tie}, which sum its gradients before each update" for tie in ties_between(chain, plan.bounds)]
    if not synchronous:
        check_tied_units(chain, plan.bounds)
    return []


def check_layers(
    chain: LayerChain, plan: Plan, phases: Sequence[Phase], inputs: Tensors, arithmetic: ComputeOptions
) -> list[str]:
    """Warnings of cuts without a gradient.

    Raises:
        ConfigError: as `check_forwards` and `check_in_place`.
    """
    cuts = [] if plan.finegrained else [first for first, _ in plan.bounds[1:]]
    overlap = not plan.finegrained and any(_several_in_flight(phase.rules) for phase in phases)
    notes, in_place = check_forwards(chain, inputs, cuts, arithmetic, overlap=overlap)
    if in_place:
        check_in_place(chain, inputs, cuts, in_place)
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


def check_rereads(
    chain: LayerChain,
    inputs: Tensors,
    arithmetic: ComputeOptions,
    changing: str | None,
    phases: Sequence[Phase],
) -> list[str]:
    """A warning of layers that save tensors derived from weights, if `changing`, a method, has backwards read others.

    Raises:
        ConfigError: as `weight_derived_layers` and `check_recomputation`.
    """
    layers = [] if changing is None else weight_derived_layers(chain, inputs, arithmetic)
    if phases[0].rules.segments is not None:  # as in all phases
        check_recomputation(chain, inputs)
    if not layers:
        return []
    named = ", ".join(layers)
    saving = f"layer {named} saves a tensor derived from its weights; the backward pass will use it"
    if len(layers) > 1:
        saving = f"layers {named} save tensors derived from their weights; the backward pass will use them"
    return [f"warning: {saving} unchanged although method={changing} asks for another weight version"]
