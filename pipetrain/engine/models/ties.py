"""Weights that several layers of a chain share, as the embedding and the output layer of a language model often do."""

import copy
import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from torch import nn
from typing_extensions import override

from pipetrain.engine.errors import ConfigError
from pipetrain.engine.models.chain import LayerChain, trainable_weights


@dataclass(frozen=True)
class Tie:
    """A trainable weight that layers of several stages share: each of these stages holds a copy.

    The stages are in order; the first one counts and saves it.
    """

    name: str
    stages: tuple[int, ...]

    @override
    def __str__(self) -> str:
        *others, last = map(str, self.stages)
        return f"{self.name} is in stages {', '.join(others)} and {last}"


def tied_weights(chain: LayerChain) -> dict[str, list[int]]:
    """Name of each trainable weight that several layers share -> these layers."""
    holders = chain.holders(nn.Module.parameters)
    trainable = {name: holders[weight] for name, weight in trainable_weights(chain.module).items()}
    return {name: layers for name, layers in sorted(trainable.items()) if len(layers) > 1}


def ties_between(chain: LayerChain, bounds: Sequence[tuple[int, int]]) -> tuple[Tie, ...]:
    """The weights that stages share when they are cut at `bounds`, (first layer, last exclusive) of each stage."""
    stage_of = {i: r for r, (first, last) in enumerate(bounds) for i in range(first, last)}
    found = {name: sorted({stage_of[i] for i in layers}) for name, layers in tied_weights(chain).items()}
    return tuple(Tie(name, tuple(stages)) for name, stages in found.items() if len(stages) > 1)


def layers_of_stage(chain: LayerChain, bounds: tuple[int, int], copied: Collection[str]) -> list[nn.Module]:
    """The chain's layers from the first to the last exclusive of `bounds`.

    If an earlier stage holds weights, too, they are `copied`, and so are the layers, which share all other tensors.
    """
    first, last = bounds
    layers = chain.layers[first:last]
    if not copied:
        return layers
    names = {id(weight): name for name, weight in chain.module.named_parameters()}
    tensors = itertools.chain.from_iterable((*layer.parameters(), *layer.buffers()) for layer in layers)
    return copy.deepcopy(layers, {id(each): each for each in tensors if names.get(id(each)) not in copied})


def untie(chain: LayerChain) -> None:
    """Gives each layer its own weight instead of one that it shares, of the same value.

    Raises:
        ConfigError: two layers share the very module that holds the weight, or one reads it from another's.
    """
    for name, layers in tied_weights(chain).items():
        shared = chain.module.get_parameter(name)
        places = {i: _places(chain.layers[i], shared) for i in layers}
        _check_untied(chain, name, {i: {module for module, _ in found} for i, found in places.items()})
        for i in layers[1:]:
            weight = nn.Parameter(shared.detach().clone())
            for module, local in places[i]:
                setattr(module, local, weight)
            chain.untied[next(each for each, other in chain.module.named_parameters() if other is weight)] = name


def _check_untied(chain: LayerChain, name: str, modules: Mapping[int, set[nn.Module]]) -> None:
    """Checks that each layer, a key of `modules`, holds the weight in separate ones, which the model has names for."""
    own, first = set(chain.module.modules()), next(iter(modules))
    if foreign := [i for i, found in modules.items() if not found <= own]:
        raise ConfigError(
            f"model.untie=true: layer {foreign[0]} ({chain.labels[foreign[0]]}) reads {name} outside of any module, so "
            "a second weight would have no name; make it the weight of a module, such as an nn.Linear"
        )
    before: set[nn.Module] = set()
    for i, found in modules.items():
        if before & found:
            raise ConfigError(
                f"model.untie=true: layers {first} ({chain.labels[first]}) and {i} ({chain.labels[i]}) share the "
                f"module of {name}; give each its own module to untie them"
            )
        before |= found


def _places(layer: nn.Module, weight: nn.Parameter) -> list[tuple[nn.Module, str]]:
    """The modules of a layer that hold the weight, and its name in each."""
    parts = ((module, local, each) for module in layer.modules() for local, each in module._parameters.items())
    return [(module, local) for module, local, each in parts if each is weight]
