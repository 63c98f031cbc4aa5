"""Trial forwards of each layer: a stage can give it its weights, and get its gradients across cuts."""

import copy
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node
from torch.func import functional_call

from pipetrain.engine.arithmetic import ComputeOptions
from pipetrain.engine.errors import ConfigError
from pipetrain.engine.models.chain import LayerChain
from pipetrain.engine.models.stateful_layer import stateful_layers
from pipetrain.engine.seeding import python_draws, python_generators_kept
from pipetrain.engine.tensors import Tensors, close, new_leaves_sharing_memory

Copied = TypeVar("Copied")
_OTHER_ERRORS = (RuntimeError, ValueError, TypeError, IndexError, NotImplementedError)
"""Errors of a layer's forward, which are not for this check to tell."""
_TOLERANCE = 1e-4


def copy_of(chain: LayerChain) -> LayerChain:
    """A copy to try things on.

    Raises:
        ConfigError: a layer has a tensor computed from weights as an attribute, as torch's older weight_norm.
    """
    if (copied := _copied(chain)) is None:
        raise ConfigError(
            "model: cannot be copied: an attribute of a module is a tensor computed from weights; weight_norm and "
            "spectral_norm of torch.nn.utils.parametrizations can be copied"
        )
    return copied


def _copied(original: Copied) -> Copied | None:
    try:
        return copy.deepcopy(original)
    except RuntimeError:
        return None


def check_forwards(
    chain: LayerChain, inputs: Tensors, cuts: Collection[int], arithmetic: ComputeOptions, *, overlap: bool = True
) -> tuple[list[str], list[int]]:
    """Checks, by forwards of each layer, that a stage can give it its weights, and get its gradients across cuts.

    Returns warnings of cuts without a gradient, and the layers that change an input in place.

    Args:
        chain: the model.
        inputs: of a few samples.
        cuts: first layers of the stages but the first.
        arithmetic: of the checks.
        overlap: True if a forward may come between that of a microbatch and its backward.

    Raises:
        ConfigError: a layer uses a parameter that is not registered, a complex tensor would have to bring a gradient
            back across a cut, or a forward overwrites what the backward of another microbatch needs.
    """
    notes: list[str] = []
    in_place: list[int] = []
    given = arithmetic.cast_inputs(inputs)
    with torch.enable_grad(), arithmetic.computing(inputs[0].device):
        # in evaluation buffers stay as they are, and nothing is drawn
        with chain.evaluating():
            in_place += _check_layers(chain, given, cuts, [], training=False, overlap=False)
        # what only training does; few samples may not be enough for it
        with torch.random.fork_rng(devices=[]), python_generators_kept(), suppress(*_OTHER_ERRORS):
            in_place += _check_layers(chain, given, cuts, notes, training=True, overlap=overlap)
    return notes, in_place


def _check_layers(
    chain: LayerChain, tensors: Tensors, cuts: Collection[int], notes: list[str], *, training: bool, overlap: bool
) -> list[int]:
    """The layers that change an input in place.

    Checks the layers one by one, each on a copy, because a layer may keep tensors that it has computed.
    """
    in_place: list[int] = []
    for index, (label, original) in enumerate(zip(chain.labels, chain.layers, strict=True)):
        if (layer := _copied(original)) is None:
            if original.training:
                return in_place
            layer = original
        forward = _Forward(label, layer, tensors)
        if forward.changes_inputs:
            in_place.append(index)
        forward.refuse_replaced()
        if not forward.scripted:
            forward.refuse_hidden(overlap=overlap)
            if training and (overlap or index in cuts):
                forward.refuse_wrong_gradients()
                notes += forward.missing_gradients() if index in cuts else []
        if index + 1 in cuts:
            forward.refuse_complex()
        tensors = tuple(each.detach().requires_grad_(each.requires_grad) for each in forward.outputs)
    return in_place


class _Forward:
    """A forward of a layer, and what a stage has to know of it.

    Attributes:
        scripted: True if the layer computes with its own parameters, whatever it is given.
        changes_inputs: True if it changes an input in place.
        outputs: of the layer.
    """

    def __init__(self, label: str, layer: nn.Module, tensors: Tensors) -> None:
        self._label, self._layer, self._tensors = label, layer, tensors
        self._leaves, kept = leaves_of(layer), layer.state_dict().keys()
        memory = _memory_of(self._leaves)
        # clones, as the first operation may be in place
        self._inputs = tuple(each.clone() for each in tensors)
        versions = [each._version for each in self._inputs]
        self.scripted = any(isinstance(part, torch.jit.ScriptModule) for part in layer.modules())
        result = layer(*self._inputs) if self.scripted else functional_call(layer, self._leaves, self._inputs)
        self.outputs: Tensors = result if isinstance(result, tuple) else (result,)
        self.changes_inputs = [each._version for each in self._inputs] != versions
        now = _memory_of(self._leaves)
        self._moved = [name for name, place in memory.items() if now.get(name) != place]
        self._new = sorted(layer.state_dict().keys() - kept)
        for carrier in stateful_layers(layer).values():
            carrier.carried = None

    def refuse_replaced(self) -> None:
        """Raises a ConfigError if the forward has put other memory in the place of weights, or made buffers."""
        what = f"model: the forward of layer {self._label}"
        if self._moved:
            raise ConfigError(
                f"{what} assigns to {_plain(self._moved[0])}.data, which a stage does not train; change the weight in "
                "place, or compute with a changed copy"
            )
        if self._new:
            raise ConfigError(
                f"{what} makes the buffer {_plain(self._new[0])}, which a checkpoint would lack; make it in __init__, "
                "or with persistent=False if each forward can make it again"
            )

    def refuse_hidden(self, *, overlap: bool) -> None:
        """Raises a ConfigError if the layer uses a parameter that it has not registered.

        It is a leaf behind the outputs that is the same one in another forward: a forward may make a leaf for itself,
        to take a gradient by it. If forwards `overlap`, there is a second one before the backward.
        """
        known = [*self._leaves.values(), *self._inputs, *self._tensors]
        hidden = _leaves_behind(self.outputs, known)
        if not (hidden or overlap):
            return
        result = called(self._layer, self._leaves, self._tensors)
        others = _leaves_behind(result if isinstance(result, tuple) else (result,), known)
        if kept := [leaf for leaf in hidden if any(leaf is other for other in others)]:
            raise ConfigError(
                f"model: layer {self._label} uses a parameter of shape {tuple(kept[0].shape)} that none of its modules "
                "registers; assign it as an attribute of the module that uses it"
            )

    def refuse_wrong_gradients(self) -> None:
        """Makes a backward; raises a ConfigError for what another forward has overwritten."""
        returned = [each for each in self.outputs if each.requires_grad]
        try:
            torch.autograd.backward(returned, [torch.ones_like(each) for each in returned])
        except RuntimeError as error:
            if "modified by an inplace operation" in str(error):
                raise ConfigError(
                    f"model: the forward of layer {self._label} changes a buffer in place that the backward of an "
                    "earlier microbatch still needs; compute with a clone() of it"
                ) from error
            raise

    def missing_gradients(self) -> list[str]:
        """A warning if the backward has brought no gradient back to some inputs."""
        if all(each.grad is not None for each in self._tensors if each.requires_grad):
            return []
        return [
            f"warning: layer {self._label}, the first of its stage, passes no gradient back for some of its inputs: "
            "weights before it, which plain training would leave alone, get a gradient of 0 and still decay"
        ]

    def refuse_complex(self) -> None:
        """Raises a ConfigError if complex outputs would have to bring gradients back from the next stage."""
        if any(each.is_complex() and each.requires_grad for each in self.outputs):
            raise ConfigError(
                f"model: layer {self._label}, the last of its stage, returns a complex tensor, but stages send back "
                "gradients of real tensors only; cut the model elsewhere, or return torch.view_as_real of it"
            )


def _memory_of(tensors: Mapping[str, Tensor]) -> dict[str, int]:
    """Where the dense tensors begin."""
    return {name: tensor.data_ptr() for name, tensor in tensors.items() if tensor.layout == torch.strided}


def _plain(name: str) -> str:
    return name.removeprefix("child.")


def leaves_of(layer: nn.Module) -> dict[str, Tensor]:
    """New autograd leaves over the memory of the layer's parameters, by name."""
    parameters = dict(layer.named_parameters())
    return new_leaves_sharing_memory(parameters, {name: each.requires_grad for name, each in parameters.items()})


def called(layer: nn.Module, leaves: dict[str, Tensor], inputs: Tensors) -> Any:
    """The result of the layer with these weights, for copies of inputs, which it may change in place."""
    with torch.enable_grad():
        return functional_call(layer, leaves, tuple(each.clone() for each in inputs))


def _leaves_behind(outputs: Tensors, known: list[Tensor]) -> list[Tensor]:
    """The leaves of autograd that outputs were computed from, but for the known ones."""
    found, known_ids = list[Tensor](), {id(leaf) for leaf in known}
    waiting, seen = [output.grad_fn for output in outputs if output.grad_fn is not None], set[Node]()
    while waiting:
        node = waiting.pop()
        if node in seen:
            continue
        seen.add(node)
        waiting += [parent for parent, _ in node.next_functions if parent is not None]
        variable = getattr(node, "variable", None)
        if isinstance(variable, Tensor) and id(variable) not in known_ids:
            found.append(variable)
    return found


def check_in_place(chain: LayerChain, inputs: Tensors, cuts: Collection[int], changing: Sequence[int]) -> None:
    """Compares the chain cut into stages with the same layers uncut: outputs and gradients for a few samples.

    Args:
        chain: the model, in training mode; left as it is.
        inputs: of its first layer.
        cuts: first layers of the stages but the first.
        changing: the layers that change an input in place, one at least.

    Raises:
        ConfigError: they differ, or what a layer writes over is needed by the backward, so that the model cannot be
            trained without a pipeline either.
    """
    with suppress(*_OTHER_ERRORS), torch.random.fork_rng(devices=[]):
        if (uncut := _trained(chain, inputs, ())) is None:
            # a copy of its input cures the layer that is to blame
            wrong = next((i for i in changing if _trained(chain, inputs, (i,)) is not None), changing[0])
            raise ConfigError(
                f"model: layer {chain.labels[wrong]} changes its input in place, but the backward of the layer before "
                "needs it; use inplace=False"
            )
        cut = _trained(chain, inputs, cuts)
        if cut is None or not all(map(partial(close, tolerance=_TOLERANCE), uncut, cut)):
            raise ConfigError(
                f"model: layer {chain.labels[changing[0]]} changes its input in place, which shares memory with "
                "another tensor that crosses a cut, and the next stage receives two separate ones; pass on a "
                "clone() of one of them"
            )


def _trained(chain: LayerChain, inputs: Tensors, copied: Collection[int]) -> list[Tensor | None] | None:
    """Outputs, and gradients of all weights, if layers `copied` get copies; None if the backward needs what is gone."""
    probe = copy_of(chain)
    tensors = tuple(tensor.clone() for tensor in inputs)
    torch.default_generator.manual_seed(0)
    with torch.enable_grad(), python_draws(0):
        for index, layer in enumerate(probe.layers):
            result = layer(*(tensor.clone() if index in copied else tensor for tensor in tensors))
            tensors = result if isinstance(result, tuple) else (result,)
        through = [tensor for tensor in tensors if tensor.requires_grad]
        try:
            torch.autograd.backward(through, [torch.ones_like(tensor) for tensor in through])
        except RuntimeError as error:
            if "modified by an inplace operation" not in str(error):
                raise
            return None
    return [*(tensor.detach() for tensor in tensors), *(weight.grad for weight in probe.module.parameters())]
