"""Stages of single weights, more of them than any pipeline has, as in PipeMare's simulations."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from torch import Tensor, nn

from pipetrain.errors import ConfigError, check_whole
from pipetrain.models.chain import LayerChain
from pipetrain.models.ties import tied_weights
from pipetrain.planner.profile.estimate import layer_costs
from pipetrain.planner.run_plan import FINEGRAINED, Plan, StagePlan


@dataclass
class ParameterGroup:
    """A weight and its bias, and the buffers of the module that holds them or of those that follow without weights.

    Attributes:
        label: name of its weight in the whole model.
        layer: index of the chain's layer.
        parameters, buffers: name in a module that holds the layers as `layers` -> name in the whole model.
    """

    label: str
    layer: int
    parameters: dict[str, str] = field(default_factory=dict)
    buffers: dict[str, str] = field(default_factory=dict)


def weight_units(chain: LayerChain) -> list[ParameterGroup]:
    """The units of a model in the order of its layers, and inside a layer of its modules (PipeMare § 4.1).

    Raises:
        ConfigError: the model has none.
    """
    units: list[ParameterGroup] = []
    orphans: dict[str, str] = {}
    seen: set[int] = set()
    for i, layer in enumerate(chain.layers):
        full = chain.names(i)
        for path, module in layer.named_modules():
            prefix = f"{path}." if path else ""
            for members in _pairs(module, seen):
                unit = ParameterGroup(full[prefix + members[0]], i)
                unit.parameters = {f"layers.{i}.{prefix}{member}": full[prefix + member] for member in members}
                units.append(unit)
            buffers = {f"layers.{i}.{prefix}{name}": full[prefix + name] for name in _buffers(module, seen)}
            (units[-1].buffers if units else orphans).update(buffers)
    if not units:
        raise ConfigError("model: no weights; there is nothing to train")
    units[0].buffers.update(orphans)
    return units


def _pairs(module: nn.Module, seen: set[int]) -> list[list[str]]:
    """Names of the module's own parameters not yet seen, each weight together with its bias."""
    pairs: dict[str, list[str]] = {}
    for name, parameter in module._parameters.items():
        if parameter is not None and id(parameter) not in seen:
            seen.add(id(parameter))
            pairs.setdefault(name.replace("bias", "weight"), []).append(name)
    return list(pairs.values())


def _buffers(module: nn.Module, seen: set[int]) -> list[str]:
    hidden = module._non_persistent_buffers_set
    buffers = {name: buffer for name, buffer in module._buffers.items() if buffer is not None and name not in hidden}
    new = [name for name, buffer in buffers.items() if id(buffer) not in seen]
    seen.update(map(id, buffers.values()))
    return new


def stage_bounds(units: int, stages: int) -> list[tuple[int, int]]:
    """(first unit, last unit exclusive) of each stage: unit u of U in stage floor(uD/U); some are empty where D > U."""
    first = [-(-r * units // stages) for r in range(stages + 1)]
    return list(itertools.pairwise(first))


def names_of(units: Sequence[ParameterGroup]) -> dict[str, str]:
    """Name in the module of all layers -> name in the whole model, of the parameters and buffers of these units."""
    return {local: full for unit in units for local, full in {**unit.parameters, **unit.buffers}.items()}


def stages_of_layers(units: Sequence[ParameterGroup], bounds: Sequence[tuple[int, int]]) -> dict[int, int]:
    """Layer -> stage, for the layers that begin with the first unit of a stage."""
    first_unit: dict[int, int] = {}
    for u, unit in enumerate(units):
        first_unit.setdefault(unit.layer, u)
    stage_of = {first: r for r, (first, last) in enumerate(bounds) if first < last}
    return {layer: stage_of[u] for layer, u in first_unit.items() if u in stage_of}


def check_tied_units(chain: LayerChain, bounds: Sequence[tuple[int, int]]) -> None:
    """Checks that no layer uses a weight of another stage, as copies differ in an asynchronous pipeline.

    A layer without its own units is placed with the unit before it.

    Raises:
        ConfigError: one does.
    """
    units = weight_units(chain)
    stage_of_unit = {u: r for r, (first, last) in enumerate(bounds) for u in range(first, last)}
    for name, layers in tied_weights(chain).items():
        stages = {stage_of_unit[max(u for u, unit in enumerate(units) if unit.layer <= i)] for i in layers}
        if len(stages) > 1:
            raise ConfigError(
                f"partition=finegrained: layers {layers[0]} ({chain.labels[layers[0]]}) and {layers[-1]} "
                f"({chain.labels[layers[-1]]}) share {name} and are in several stages, which no asynchronous method "
                "can keep equal; model.untie=true makes separate weights of it"
            )


@dataclass(frozen=True)
class FineGrained:
    """A number of stages of single weights; simulated only.

    Attributes:
        stages: D; if above the number of units, stages without any add only delay.
    """

    stages: int
    name: ClassVar[str] = FINEGRAINED

    def plan(self, chain: LayerChain, example: Sequence[Tensor]) -> Plan:
        """The units of each stage, a layer's estimated cost shared equally among its units.

        Raises:
            ConfigError: `stages` is not a whole number of at least 1.
        """
        check_whole("partition.stages", self.stages, least=1)
        units, costs = weight_units(chain), layer_costs(chain, example)
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
