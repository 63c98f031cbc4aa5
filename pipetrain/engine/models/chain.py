"""A model as a chain of layers, the unit that a partition places."""

import itertools
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn
from typing_extensions import override

from pipetrain.engine.errors import ConfigError

_NORMS = (nn.modules.batchnorm._NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)


@dataclass(eq=False)
class LayerChain:
    """A whole model, and the layers that compute it in sequence.

    `layers[i]` takes the tensors that `layers[i - 1]` returned as its positional arguments, and returns a tensor or a
    tuple of tensors. Every layer is made of submodules of `module`, shared and not copied: the names of
    `module.state_dict()` appear in checkpoints and exports. `labels` are short unique names of the layers, derived
    from the names in `module` unless given; `notes` say what the user should know of how the layers came about.
    `untied` has the weights that became separate ones: name -> the weight that it was before. `recorded` is true if the
    layers repeat a recording of the forward of `module`.

    Raises:
        ConfigError: a weight or buffer of `module` is in no layer, or a layer holds one that `module` does not.
    """

    module: nn.Module
    layers: list[nn.Module]
    labels: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    untied: dict[str, str] = field(default_factory=dict)
    recorded: bool = False

    def __post_init__(self) -> None:
        self.labels = self.labels or _labels(self.module, self.layers)
        _check(self)

    def __len__(self) -> int:
        return len(self.layers)

    def __call__(self, *tensors: Tensor) -> Any:
        """Output of the last layer for these inputs of the first."""
        for layer in self.layers:
            outputs = layer(*tensors)
            tensors = outputs if isinstance(outputs, tuple) else (outputs,)
        return outputs

    def names(self, i: int) -> dict[str, str]:
        """Each name in the state dict of layer `i`, and what the whole model's calls the same tensor."""
        full = _names(self.module)
        local = self.layers[i].state_dict(keep_vars=True)
        return {name: full[id(value)] for name, value in local.items() if isinstance(value, Tensor)}

    @classmethod
    def of_sequential(cls, module: nn.Sequential) -> "LayerChain":
        """The children of an `nn.Sequential` as layers."""
        # _modules, as a module that appears twice (one ReLU for all) is two layers; named_children() drops the second
        children = [(name, child) for name, child in module._modules.items() if child is not None]
        layers = [child if i == 0 else Child(child) for i, (_, child) in enumerate(children)]
        labels = [f"{name}:{type(child).__name__}" if name.isdigit() else name for name, child in children]
        return cls(module, layers, labels)

    def aliases(self) -> dict[str, str]:
        """Each further name of a tied tensor in the state dict of `module`, and the first, which stands for all."""
        full = _names(self.module)
        named = self.module.state_dict(keep_vars=True).items()
        firsts = {name: full[id(value)] for name, value in named if isinstance(value, Tensor)}
        return {name: first for name, first in firsts.items() if name != first}

    def weight_layers(self) -> list[int]:
        """The layers that hold a weight-carrying operator (convolution, linear, embedding, recurrent), in order.

        A placement vector counts them. A layer whose only parameters belong to a norm is not counted.
        """
        return [i for i, layer in enumerate(self.layers) if any(_carries_weight(part) for part in layer.modules())]

    def tied(self, *, buffers_alone: bool = False) -> list[tuple[int, int]]:
        """The pairs (i, j), i < j, of layers that share a trainable weight or a buffer, or else `buffers_alone`.

        Those that share a buffer must be in one stage, as the forward of each may change it.
        """
        weights = {} if buffers_alone else self.holders(nn.Module.parameters)
        trainable = (layers for weight, layers in weights.items() if weight.requires_grad)
        both = (*trainable, *self.holders(nn.Module.buffers).values())
        return sorted({pair for layers in both for pair in itertools.pairwise(layers)})

    def shared_weights(self, *, trainable: bool = False) -> dict[tuple[int, ...], int]:
        """The layers that share weights, ascending -> the bytes that just these share, all or `trainable` ones."""
        shared: dict[tuple[int, ...], int] = {}
        for weight, layers in self.holders(nn.Module.parameters).items():
            if len(layers) > 1 and (weight.requires_grad or not trainable):
                shared[tuple(layers)] = shared.get(tuple(layers), 0) + weight.nbytes
        return shared

    def train(self) -> None:
        """Puts all into training mode, `module` last: its own `train` may leave a part in evaluation mode."""
        for layer in self.layers:
            layer.train()
        self.module.train()

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """In evaluation mode inside; afterwards every module is in its former mode."""
        training = [part for layer in self.layers for part in layer.modules() if part.training]
        for layer in self.layers:
            layer.eval()
        try:
            yield
        finally:
            for part in training:
                part.training = True

    def holders(self, tensors: Callable[[nn.Module], Iterable[Tensor]]) -> dict[Tensor, list[int]]:
        """Each of these tensors of the layers -> the layers that hold it, ascending."""
        found: dict[Tensor, list[int]] = {}
        for i, layer in enumerate(self.layers):
            for tensor in tensors(layer):
                found.setdefault(tensor, []).append(i)
        return found


class Child(nn.Module):
    """A later child of an nn.Sequential, which gets what its predecessor returned as one argument, tuple or not."""

    def __init__(self, child: nn.Module) -> None:
        super().__init__()
        self.child = child

    @override
    def forward(self, *tensors: Tensor) -> Any:
        return self.child(tensors if len(tensors) > 1 else tensors[0])


def trainable_weights(module: nn.Module) -> dict[str, nn.Parameter]:
    """Name -> parameter that requires a gradient; a shared one under its first name alone."""
    return {name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad}


@contextmanager
def sharing_buffers(*modules: nn.Module) -> Iterator[None]:
    """A context in which modules are moved or converted, after which parts that shared a buffer still share it.

    torch keeps parameters, but puts a separate buffer into each part. All get the buffer of the first part.
    """
    places: dict[Tensor, dict[tuple[nn.Module, str], None]] = {}
    for part in itertools.chain.from_iterable(module.modules() for module in modules):
        for name, buffer in part.named_buffers(recurse=False):
            places.setdefault(buffer, {})[part, name] = None
    yield
    for (first, name), *others in places.values():
        for part, other in others:
            setattr(part, other, getattr(first, name))


def _names(module: nn.Module) -> dict[int, str]:
    """The first state-dict name of every tensor of `module`, by identity."""
    names: dict[int, str] = {}
    for name, value in module.state_dict(keep_vars=True).items():
        if isinstance(value, Tensor):  # and not the extra state of a module, whose id is soon another object's
            names.setdefault(id(value), name)
    return names


def _carries_weight(module: nn.Module) -> bool:
    return not isinstance(module, _NORMS) and next(module.parameters(recurse=False), None) is not None


def _labels(module: nn.Module, layers: list[nn.Module]) -> list[str]:
    """Each layer's first submodule, if possible with weights, that the model has a name for."""
    names = {part: name for name, part in module.named_modules() if name}
    labels: list[str] = []
    for i, layer in enumerate(layers):
        named = [part for part in layer.modules() if part in names]
        named.sort(key=_carries_weight, reverse=True)  # stable: the first with weights, else the first
        label = names[named[0]] if named else f"{i}:{type(layer).__name__}"
        labels.append(f"{label}#{i}" if label in labels else label)
    return labels


def _check(chain: LayerChain) -> None:
    model = type(chain.module).__name__
    if not chain.layers:
        raise ConfigError(f"model: {model} has no layers; a chain needs at least one")
    if len(set(chain.labels)) != len(chain.layers):
        raise ConfigError(f"model: expected {len(chain.layers)} unique labels, got {chain.labels}")
    named = itertools.chain(chain.module.named_parameters(), chain.module.named_buffers())
    owned = {id(tensor): name for name, tensor in named}
    lost = dict(owned)
    for label, layer in zip(chain.labels, chain.layers, strict=True):
        for tensor in (*layer.parameters(), *layer.buffers()):
            if id(tensor) not in owned:
                raise ConfigError(f"model: layer {label} has a weight or buffer that {model} lacks")
            lost.pop(id(tensor), None)
    if lost:
        raise ConfigError(f"model: {', '.join(list(lost.values())[:3])} of {model} is in none of its layers")
