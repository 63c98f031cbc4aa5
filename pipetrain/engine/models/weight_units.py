"""The units of a model that a stage of single weights may hold: each weight with its bias."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import nn

from pipetrain.engine.errors import ConfigError
from pipetrain.engine.models.chain import LayerChain


@dataclass
class ParameterGroup:
    """A weight, its bias, and the buffers of their module and of modules after it that have no weights.

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


def names_of(units: Sequence[ParameterGroup]) -> dict[str, str]:
    """Name in the module of all layers -> name in the whole model, of the parameters and buffers of these units."""
    return {local: full for unit in units for local, full in {**unit.parameters, **unit.buffers}.items()}


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
