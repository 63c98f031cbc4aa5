"""The plan of a run: which layers form which stage, by which rule, and what each stage is estimated to cost."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from pipetrain.engine.models.chain import LayerChain
from pipetrain.graph.layer_costs import WeightPasses, layer_costs, no_passes
from pipetrain.runner.config.settings import Settings
from pipetrain.runner.partition.rules import PartitionRule
from pipetrain.runner.partition.shared_weight import SharedWeight

FINEGRAINED = "finegrained"
"""Name of the partition whose stages are of single weights."""


@dataclass(frozen=True)
class StagePlan:
    """One stage, and the estimate for one minibatch of the example's size.

    Attributes:
        first, last: its layers, `last` exclusive.
        parameters: number of weights; tied ones count once.
        estimated_seconds: of one forward, backward and update on one CPU core, including the method's own work:
            compares stages, predicts no run.
        estimated_bytes: weights, gradients and activations of one version and one minibatch.
        weight_bytes: of one version of its weights.
    """

    first: int
    last: int
    labels: list[str]
    parameters: int
    estimated_seconds: float
    estimated_bytes: int
    weight_bytes: int


@dataclass(frozen=True)
class Plan:
    """The stages of a run.

    Attributes:
        copied_parameters: number of copies of tied weights in later stages.
        replicas: number of processes of each stage; None: one each.
        measured: True if the cuts follow from measurements, which vary: a run that resumes could not find them again.
        notes: for the user, one line each.
    """

    rule: str
    stages: list[StagePlan]
    copied_parameters: int = 0
    replicas: tuple[int, ...] | None = None
    measured: bool = False
    notes: tuple[str, ...] = ()

    @property
    def bounds(self) -> list[tuple[int, int]]:
        """(first layer, last layer exclusive) of each stage."""
        return [(stage.first, stage.last) for stage in self.stages]

    @property
    def finegrained(self) -> bool:
        """True if the stages are of single weights; `first` and `last` then number weight units."""
        return self.rule == FINEGRAINED

    @property
    def stale_weight_share(self) -> float:
        """The share of the weights in all stages but the last, which an asynchronous schedule delays."""
        parameters = [stage.parameters for stage in self.stages]
        return sum(parameters[:-1]) / max(1, sum(parameters))

    def to_json(self) -> dict[str, Any]:
        """The content of plan.json."""
        return {
            "rule": self.rule,
            "parameters": sum(stage.parameters for stage in self.stages) - self.copied_parameters,
            "stale_weight_share": self.stale_weight_share,
            **({} if self.replicas is None else {"replicas": list(self.replicas)}),
            "stages": [{"stage": r, **asdict(stage)} for r, stage in enumerate(self.stages)],
        }


@dataclass(frozen=True)
class Unplanned:
    """A run whose stages are to be planned.

    Attributes:
        passes: over the weights of each stage, by the number of stages.
        shares_weights: True if stages may hold copies of one weight, which synchronous methods keep equal.
    """

    settings: Settings
    chain: LayerChain
    data: Any
    passes: WeightPasses
    shares_weights: bool
    resume: Path | None = None

    def cut_by(self, rule: PartitionRule) -> Plan:
        """The plan of the chain cut by `rule`, with the settings' replicas, else the rule's; raises as `make_plan`."""
        plan = make_plan(self.chain, rule, self.data.example, self.passes, shares_weights=self.shares_weights)
        return replace(plan, replicas=replica_counts(self.settings, rule))


def planned(run: Unplanned, rule: Any) -> Plan:
    """The plan of a run by its partition rule: one with `plan_of` makes it, any other says where to cut.

    Raises:
        ConfigError: the rule cannot hold for this run.
    """
    plan: Plan = rule.plan_of(run) if callable(getattr(rule, "plan_of", None)) else run.cut_by(rule)
    return plan


def replica_counts(settings: Settings, rule: object) -> tuple[int, ...] | None:
    """Number of replicas of each stage: partition.replicas, else those that the rule has planned; None: one each."""
    given: tuple[int, ...] | None = settings.replicas.counts
    own: tuple[int, ...] = getattr(rule, "replicas", ())
    return own if given is None and max(own, default=1) > 1 else given


def make_plan(
    chain: LayerChain,
    rule: PartitionRule,
    example: Sequence[Tensor],
    passes: WeightPasses = no_passes,
    *,
    shares_weights: bool = False,
) -> Plan:
    """The plan of `chain` cut by `rule`; of the example, the inputs of a minibatch, only the shapes matter.

    `passes` and `shares_weights` are as of `Unplanned`.

    Raises:
        ConfigError: the rule cannot hold for this model.
    """
    costs = layer_costs(chain, example)
    glued = chain.tied(buffers_alone=shares_weights)
    bounds = list(itertools.pairwise([0, *rule.cuts(chain, costs, passes, glued), len(chain)]))
    by_stage = zip(bounds, passes(len(bounds)), strict=True)
    # once for all weights, once for the gradients of the trainable ones
    shared = [
        SharedWeight(*each) for trainable in (False, True) for each in chain.shared_weights(trainable=trainable).items()
    ]
    stages = [
        StagePlan(
            first=first,
            last=last,
            labels=chain.labels[first:last],
            parameters=_total(nn.Parameter.numel, chain.layers[first:last]),
            estimated_seconds=sum(cost.at(weight_passes) for cost in costs[first:last]),
            estimated_bytes=sum(cost.memory_bytes for cost in costs[first:last])
            - sum(each.counted_again(range(first, last)) for each in shared),
            weight_bytes=_total(lambda weight: weight.nbytes, chain.layers[first:last]),
        )
        for (first, last), weight_passes in by_stage
    ]
    whole = _total(nn.Parameter.numel, [chain.module])
    return Plan(rule.name, stages, sum(stage.parameters for stage in stages) - whole)


def _total(size: Callable[[nn.Parameter], int], modules: Sequence[nn.Module]) -> int:
    """Size of the weights in these modules, shared ones counted once."""
    weights = {id(weight): weight for module in modules for weight in module.parameters()}
    return sum(map(size, weights.values()))
