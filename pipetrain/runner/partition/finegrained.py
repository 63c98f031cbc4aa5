"""Stages of single weights, as in PipeMare's simulations of very deep pipelines."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from pipetrain.engine.errors import ConfigError, check_whole
from pipetrain.engine.models.chain import LayerChain
from pipetrain.engine.models.ties import tied_weights
from pipetrain.engine.models.weight_units import ParameterGroup, weight_units
from pipetrain.graph.layer_costs import layer_costs
from pipetrain.runner.partition.run_plan import FINEGRAINED, Plan, StagePlan, Unplanned


def stage_bounds(units: int, stages: int) -> list[tuple[int, int]]:
    """(first unit, last unit exclusive) of each stage: unit u of U in stage floor(uD/U); some are empty where D > U."""
    first = [-(-r * units // stages) for r in range(stages + 1)]
    return list(itertools.pairwise(first))


def stages_of_layers(units: Sequence[ParameterGroup], bounds: Sequence[tuple[int, int]]) -> dict[int, int]:
    """Layer -> stage, for the layers that begin with the first unit of a stage."""
    first_unit: dict[int, int] = {}
    for u, unit in enumerate(units):
        first_unit.setdefault(unit.layer, u)
    stage_of = {first: r for r, (first, last) in enumerate(bounds) if first < last}
    return {layer: stage_of[u] for layer, u in first_unit.items() if u in stage_of}


def check_tied_units(chain: LayerChain, bounds: Sequence[tuple[int, int]]) -> None:
    """Raises a ConfigError if a layer uses a weight of another stage, as copies differ in an asynchronous pipeline.

    A layer without its own units is placed with the unit before it.
    """
    units = weight_units(chain)
    stage_of_unit = {u: r for r, (first, last) in enumerate(bounds) for u in range(first, last)}
    for name, layers in tied_weights(chain).items():
        stages = {stage_of_unit[max(u for u, unit in enumerate(units) if unit.layer <= i)] for i in layers}
        if len(stages) > 1:
            raise ConfigError(
                f"partition=finegrained: layers {layers[0]} ({chain.labels[layers[0]]}) and {layers[-1]} "
                f"({chain.labels[layers[-1]]}) share {name} across stages, and no asynchronous method keeps copies "
                "equal; model.untie=true makes separate weights of it"
            )


@dataclass(frozen=True)
class FineGrained:
    """A number of stages of single weights; simulated only.

    Attributes:
        stages: D; if above the number of units, stages without any add only delay.
    """

    stages: int
    name: ClassVar[str] = FINEGRAINED

    def plan_of(self, run: Unplanned) -> Plan:
        """The units of each stage, a layer's estimated cost shared equally among its units.

        Raises:
            ConfigError: `stages` is not a whole number of at least 1.
        """
        check_whole("partition.stages", self.stages, least=1)
        chain = run.chain
        units, costs = weight_units(chain), layer_costs(chain, run.data.example)
        weights = dict(chain.module.named_parameters())

        def of_stage(first: int, last: int) -> list[Tensor]:
            return [weights[full] for unit in units[first:last] for full in unit.parameters.values()]

        in_layer = [sum(unit.layer == i for unit in units) for i in range(len(chain))]
        return Plan(
            self.name,
            [
                StagePlan(
                    first=first,
                    last=last,
                    labels=[unit.label for unit in units[first:last]],
                    parameters=sum(weight.numel() for weight in of_stage(first, last)),
                    estimated_seconds=sum(costs[u.layer].cost / in_layer[u.layer] for u in units[first:last]),
                    estimated_bytes=sum(costs[u.layer].memory_bytes // in_layer[u.layer] for u in units[first:last]),
                    weight_bytes=sum(weight.nbytes for weight in of_stage(first, last)),
                )
                for first, last in stage_bounds(len(units), self.stages)
            ],
        )
