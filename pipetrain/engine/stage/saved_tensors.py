"""The graph of a forward, which keeps weights and casts by name, so that its backward may read other versions."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from typing_extensions import override

from pipetrain.engine.stage import cudnn_rnn
from pipetrain.engine.stage.measurements import ActivationBytes
from pipetrain.engine.stage.split_backward import PutAside, run_backward
from pipetrain.engine.tensors import Tensors, storage_pointers
from pipetrain.engine.weights.versions import WeightVersion


class Geometry(NamedTuple):
    """What makes a tensor a view of some memory. Real parts of complex numbers are a view of another type."""

    size: torch.Size
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype

    @classmethod
    def of(cls, tensor: Tensor) -> "Geometry":
        """That of a tensor."""
        return cls(tensor.size(), tensor.stride(), int(tensor.storage_offset()), tensor.dtype)

    def view(self, tensor: Tensor) -> Tensor:
        """The view of a tensor's memory."""
        if tensor.dtype == self.dtype:
            return tensor.as_strided(self.size, self.stride, self.offset)
        empty = torch.empty(0, dtype=self.dtype, device=tensor.device)
        return empty.set_(tensor.untyped_storage(), self.offset, self.size, self.stride)


class Cast(NamedTuple):
    """A cast of a weight, or of a part of one, to `dtype`."""

    name: str
    part: Geometry
    dtype: torch.dtype

    def of(self, weights: Mapping[str, Tensor]) -> Tensor:
        """The cast of other weights."""
        return self.part.view(weights[self.name]).to(self.dtype)


class GraphCasts:
    """Recognizes casts of whole weights by the nodes of the graph that made them."""

    def __init__(self, weights: Mapping[str, Tensor]) -> None:
        self.names = _by_storage(weights)
        """Pointer of a storage -> the name of the weight in it."""

    def of(self, tensor: Tensor) -> Cast | None:
        """The cast that a tensor is, or is a view of; None if it is neither, or the graph does not show it."""
        made = tensor._base if tensor._is_view() else tensor
        node = made.grad_fn if made is not None else None
        if made is None or node is None or node.name() != "ToCopyBackward0":
            return None
        weight: Tensor | None = getattr(node.next_functions[0][0], "variable", None)
        if weight is None or weight.dtype == made.dtype:
            return None
        name = self.names.get(weight.untyped_storage().data_ptr())
        return None if name is None else Cast(name, Geometry.of(weight), made.dtype)


class WeightCasts(TorchDispatchMode):
    """Records each cast of a weight, by name, in the operations that run under it, including autocast's.

    This takes several times as long as small operations themselves.

    Attributes:
        in_graph: True if `GraphCasts` has recognized the same casts, among the tensors asked about.
    """

    def __init__(self, weights: Mapping[str, Tensor]) -> None:
        super().__init__()
        self._graph = GraphCasts(weights)
        self.names = self._graph.names
        self._casts: dict[int, tuple[StorageWeakRef, Cast]] = {}
        self.in_graph = True

    @override
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        returned = func(*args, **(kwargs or {}))
        if func is torch.ops.aten._to_copy.default and returned.dtype != args[0].dtype:
            source = args[0]
            name = self.names.get(source.untyped_storage().data_ptr())
            if name is not None:
                storage = returned.untyped_storage()
                cast = Cast(name, Geometry.of(source), returned.dtype)
                self._casts[storage.data_ptr()] = StorageWeakRef(storage), cast
        return returned

    def of(self, tensor: Tensor) -> Cast | None:
        """The cast that a tensor is, or is a view of; None if it is neither."""
        kept = self._casts.get(tensor.untyped_storage().data_ptr())
        # memory of a cast that is gone may be another's by now
        found = kept[1] if kept is not None and not kept[0].expired() else None
        self.in_graph &= found == self._graph.of(tensor)
        return found


class CastRecognition:
    """Chooses how the casts of weights in a forward are recognized: by a record of it, or by its graph.

    The first forward of each shape is recorded. If its graph shows the same casts, the next forwards use theirs.
    """

    def __init__(self) -> None:
        self._recorded: dict[tuple[torch.Size, ...], tuple[WeightCasts, int]] = {}

    def of_forward(self, weights: Mapping[str, Tensor], shapes: tuple[torch.Size, ...]) -> "WeightCasts | GraphCasts":
        """The recognition of casts in the next forward, of inputs of these shapes with these weights."""
        last, forwards = self._recorded.get(shapes, (None, 0))
        if last is not None and last.in_graph and forwards % _RECORD_EVERY:
            self._recorded[shapes] = last, forwards + 1
            return GraphCasts(weights)
        recorded = WeightCasts(weights)
        self._recorded[shapes] = recorded, forwards + 1
        return recorded


_RECORD_EVERY = 100
"""Forwards of the same shapes from one that is recorded to the next: a layer may take another path through its code."""


def _by_storage(weights: Mapping[str, Tensor]) -> dict[int, str]:
    """Pointer of a storage -> the name of the weight in it."""
    return {weight.untyped_storage().data_ptr(): name for name, weight in weights.items()}


@cache
def _empty(dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.empty(0, dtype=dtype, device=device)


_Saved = Callable[[], Tensor] | tuple[Tensor, int]
"""What the graph keeps for a saved tensor: a function that makes it from the backward's weights, or it and its version.

A version counter shows changes in place; autograd's own check of it is off where there are hooks.
"""


def _restored(saved: _Saved) -> Tensor:
    """The tensor for the backward.

    Raises:
        RuntimeError: it was modified since the forward.
    """
    if not isinstance(saved, tuple):
        return saved()
    kept, version = saved
    if kept._version != version:
        raise RuntimeError(
            f"a tensor of shape {tuple(kept.shape)} that the backward needs was modified by an in-place operation "
            "after the forward saved it; use the operation's out-of-place form"
        )
    return kept


class SavedTensors:
    """The hooks around one forward, and the weights that its backward is to find.

    A saved tensor whose storage belongs to a weight is kept as a name and a geometry. If the backward reads other
    weights, so is a cast of a weight, and the copy that cuDNN packs of a recurrent layer's weights is packed again. Any
    other tensor is kept as it is, with its version counter.

    Args:
        forward_weights: name -> tensor, of the forward.
        casts: recognizes casts of these weights in the forward; None to keep them as they are.

    Attributes:
        backward_weights: name -> tensor, to be set before the backward runs; until then the forward's, for a layer that
            differentiates something inside it.
    """

    def __init__(self, forward_weights: Mapping[str, Tensor], casts: WeightCasts | GraphCasts | None = None) -> None:
        self._names = _by_storage(forward_weights) if casts is None else casts.names
        self._casts = casts
        self._sizes: dict[int, int] = {}
        self.backward_weights = forward_weights

    def activation_bytes(self, inputs: Sequence[Tensor]) -> ActivationBytes:
        """Bytes that the forward keeps for its backward, without weights.

        Inputs may be parts of one storage, such as the microbatches of a minibatch, and count by their own size.
        """
        input_sizes = {tensor.untyped_storage().data_ptr(): tensor.nbytes for tensor in inputs}
        made = sum(size for pointer, size in self._sizes.items() if pointer not in input_sizes)
        return ActivationBytes(made, sum(size for pointer, size in input_sizes.items() if pointer in self._sizes))

    @contextmanager
    def hooks(self) -> Iterator[None]:
        """The context in which the forward runs."""
        packing = torch.autograd.graph.saved_tensors_hooks(self._pack, _restored)
        with packing, self._casts if isinstance(self._casts, WeightCasts) else nullcontext():
            yield

    def _pack(self, tensor: Tensor) -> _Saved:
        try:
            pointer = tensor.untyped_storage().data_ptr()
        except NotImplementedError:  # a sparse tensor has no storage, and is no weight of ours
            return tensor.detach(), tensor._version
        if pointer:  # a tensor has memory
            cast = self._casts.of(tensor) if self._casts is not None else None
            if cast is not None:
                part_of_cast = Geometry.of(tensor)
                return lambda: part_of_cast.view(cast.of(self.backward_weights))
            name = self._names.get(pointer)
            if name is not None:
                return self._part_of_weight(name, tensor)
        layer = cudnn_rnn.running_layer()
        if layer is not None and cudnn_rnn.is_packed_copy(tensor, layer):
            weights, size = [self._pack(weight) for weight in cudnn_rnn.weights_of(layer)], tensor.size()
            return lambda: cudnn_rnn.packed_copy(layer, [_restored(weight) for weight in weights], size)
        self._sizes[pointer] = tensor.untyped_storage().nbytes()
        # a node that keeps its own output would keep itself alive where no backward comes
        return tensor.detach(), tensor._version

    def _part_of_weight(self, name: str, tensor: Tensor) -> _Saved:
        part, conjugate, negative = Geometry.of(tensor), tensor.is_conj(), tensor.is_neg()

        def view() -> Tensor:
            found = part.view(self.backward_weights[name])
            found = found.conj() if conjugate else found
            return torch._neg_view(found) if negative else found

        return view


@dataclass(eq=False)
class ForwardGraph:
    """The graph of a forward or recomputation, from the stage's inputs and weights to its outputs.

    Attributes:
        inputs: the differentiable ones.
        shapes: of all inputs.
        input_gradients: of `inputs`, after the backward; None for an input without one.
        input_leaves: in place of `inputs`, where autograd leaves their gradients; empty if it puts them into the list.
        outputs: with their graph.
        leaves: weights of the forward, as leaves, by name.
        version: of these weights, which updates in place make newer; None if the backward reads other weights, so
            that these are freed.
        saved: saved weights by name, if the backward reads other weights.
        aliased: indices of outputs that share memory with a weight or a buffer.
        put_aside: what a split backward leaves to W; None if the backward is whole.
    """

    inputs: Sequence[Tensor]
    shapes: tuple[torch.Size, ...]
    input_gradients: list[Tensor | None]
    input_leaves: Sequence[Tensor]
    outputs: Tensors
    leaves: dict[str, Tensor]
    version: WeightVersion | None
    saved: SavedTensors | None
    bytes: ActivationBytes
    aliased: frozenset[int]
    put_aside: PutAside | None = None

    @property
    def floating_outputs(self) -> list[Tensor]:
        """The outputs that gradients come back for."""
        return [output for output in self.outputs if output.is_floating_point()]

    def unbind(self) -> None:
        """Releases the weights: the graph holds the leaves, and a prediction would live until its backward."""
        assert self.saved is not None
        self.saved.backward_weights = {}
        for leaf in self.leaves.values():
            leaf.data = _empty(leaf.dtype, leaf.device)

    def bind(self, weights: Mapping[str, Tensor]) -> None:
        """Sets the weights that the backward reads, by name."""
        assert self.saved is not None
        self.saved.backward_weights = weights
        for name, leaf in self.leaves.items():
            leaf.data = weights[name]

    def backward(self, gradients: Sequence[Tensor]) -> set[int]:
        """Adds to the leaves' gradients, given those of the floating-point outputs. Returns the others' storages."""
        pairs = zip(self.floating_outputs, gradients, strict=True)
        differentiable = [(output, gradient) for output, gradient in pairs if output.requires_grad]
        if not differentiable:
            return set()
        outputs, output_gradients = zip(*differentiable, strict=True)
        with self.put_aside.collecting() if self.put_aside is not None else nullcontext():
            run_backward(outputs, output_gradients, (), last=True)
        if self.input_leaves:
            self.input_gradients = [leaf.grad for leaf in self.input_leaves]
        others = {*self.put_aside.storages} if self.put_aside is not None else set()
        return storage_pointers([*output_gradients, *self.input_gradients]) | others

    def keep_for_weights(self) -> None:
        """Releases all but what W needs."""
        self.inputs = self.input_leaves = self.outputs = ()
        self.input_gradients = []
        if self.saved is not None and self.version is None:
            self.unbind()

    @property
    def has_gradients_like_inputs(self) -> bool:
        """True if the backward gave each input a gradient of its own strides, as autograd would give a leaf."""
        pairs = zip(self.inputs, self.input_gradients, strict=True)
        return all(gradient is not None and gradient.stride() == tensor.stride() for tensor, gradient in pairs)

    def gradients_of_inputs(self) -> list[Tensor]:
        """Gradients for the previous stage; zeros for inputs without one."""
        pairs = zip(self.inputs, self.input_gradients, strict=True)
        return [torch.zeros_like(tensor) if gradient is None else gradient for tensor, gradient in pairs]
