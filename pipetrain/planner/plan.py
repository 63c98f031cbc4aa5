"""The plan of a run: which layers form which stage, by which rule, and what each stage is estimated to cost."""

import itertools
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from torch import Tensor

from pipetrain.models.chain import LayerChain
from pipetrain.planner.estimate import LayerCost, layer_costs
from pipetrain.planner.partition_rules import PartitionRule


@dataclass(frozen=True)
class StagePlan:
    """One stage, and the estimate for one microbatch of the example's size.

    Attributes:
        first, last: its layers, `last` exclusive.
        labels: theirs.
        parameters: how many weights, tied ones once.
        estimated_seconds: one forward and backward on one CPU core: compare stages, do not predict a run.
        estimated_bytes: weights, gradients and activations of one version and one microbatch.
    """

    first: int
    last: int
    labels: list[str]
    parameters: int
    estimated_seconds: float
    estimated_bytes: int


@dataclass(frozen=True)
class Plan:
    """The stages of a run, and the name of the rule that made them."""

    rule: str
    stages: list[StagePlan]

    @property
    def stale_weight_share(self) -> float:
        """The share of the weights that the stages before the last hold."""
        return stale_weight_share([stage.parameters for stage in self.stages])

    def to_json(self) -> dict[str, Any]:
        """The content of plan.json."""
        return {
            "rule": self.rule,
            "parameters": sum(stage.parameters for stage in self.stages),
            "stale_weight_share": self.stale_weight_share,
            "stages": [{"stage": r, **asdict(stage)} for r, stage in enumerate(self.stages)],
        }


def stale_weight_share(parameters: Sequence[int]) -> float:
    """The share of the weights that all stages but the last hold: those that an asynchronous schedule delays.

    Args:
        parameters: how many each stage holds; the share of none at all is 0.
    """
    return sum(parameters[:-1]) / max(1, sum(parameters))


def make_plan(chain: LayerChain, rule: PartitionRule, example: Sequence[Tensor]) -> Plan:
    """The plan of `chain` cut by `rule`; of `example`, the input tensors of a microbatch, only the shapes matter.

    Raises:
        ConfigError: the rule cannot hold for this model.
    """
    costs = layer_costs(chain, example)
    bounds = itertools.pairwise([0, *rule.cuts(chain, costs), len(chain)])
    return Plan(rule.name, [_stage(chain, costs, first, last) for first, last in bounds])


def _stage(chain: LayerChain, costs: list[LayerCost], first: int, last: int) -> StagePlan:
    # a tied weight counts once, so the layers' own counts do not simply add up
    weights = {id(weight): weight for layer in chain.layers[first:last] for weight in layer.parameters()}
    return StagePlan(
        first=first,
        last=last,
        labels=chain.labels[first:last],
        parameters=sum(weight.numel() for weight in weights.values()),
        estimated_seconds=sum(cost.cost for cost in costs[first:last]),
        estimated_bytes=sum(cost.memory_bytes for cost in costs[first:last]),
    )
