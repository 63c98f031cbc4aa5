"""Recurrent layers under cuDNN, which computes with a packed copy of the weights and saves it for the backward."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor, nn
from torch.backends.cudnn import rnn

_running: ContextVar[nn.RNNBase | None] = ContextVar("running", default=None)


running_layer = _running.get
"""Returns the recurrent layer whose forward is running, inside of `tracking_forwards`; else None."""


def tracking_forwards(layers: Sequence[nn.RNNBase]) -> AbstractContextManager[Any]:
    """Context in which `running_layer` knows which of the layers is running."""
    return _around_forwards(layers, _marked_running)


def without_cudnn(layers: Sequence[nn.RNNBase]) -> AbstractContextManager[Any]:
    """The context in which the layers, and they alone, compute by torch's own operations, which save no packed copy."""
    return _around_forwards(layers, lambda _layer: cudnn_off())


@contextmanager
def cudnn_off() -> Iterator[None]:
    """Computes without cuDNN; its other switches, which are the user's, stay as they are."""
    before = torch.backends.cudnn.enabled
    torch.backends.cudnn.enabled = False
    try:
        yield
    finally:
        torch.backends.cudnn.enabled = before


def is_packed_copy(tensor: Tensor, layer: nn.RNNBase) -> bool:
    """True if a tensor that the layer's forward saves, and that is no weight, is the copy of all of its weights.

    All other tensors that cuDNN saves have more dimensions, or are of bytes.
    """
    return tensor.ndim == 1 and tensor.dtype == weights_of(layer)[0].dtype


def weights_of(layer: nn.RNNBase) -> list[Tensor]:
    """The weights that a layer computes with, in cuDNN's order."""
    return [weight for weight in layer._flat_weights if weight is not None]


def packed_copy(layer: nn.RNNBase, weights: Sequence[Tensor], size: torch.Size) -> Tensor:
    """The copy that cuDNN makes of these weights of a layer, in the order of `weights_of`.

    Raises:
        RuntimeError: the copy is not of the `size` of the one that the forward saved.
    """
    with torch.no_grad():
        # it points what it is given to parts of the copy: these are other tensors over the weights' memory
        copy = torch._cudnn_rnn_flatten_weight(
            [weight.data for weight in weights],
            len(weights) // (layer.num_layers * (1 + layer.bidirectional)),
            layer.input_size,
            rnn.get_cudnn_mode(layer.mode),
            layer.hidden_size,
            layer.proj_size,
            layer.num_layers,
            layer.batch_first,
            layer.bidirectional,
        )
    if copy.shape != size:
        raise RuntimeError(
            f"{layer}: cuDNN packs its weights into {copy.numel()} numbers, and its forward saved {size.numel()}; "
            "torch.backends.cudnn.enabled=False computes it without cuDNN"
        )
    return copy


@contextmanager
def _marked_running(layer: nn.RNNBase) -> Iterator[None]:
    token = _running.set(layer)
    try:
        yield
    finally:
        _running.reset(token)


@contextmanager
def _around_forwards(
    layers: Sequence[nn.RNNBase], context: Callable[[nn.RNNBase], AbstractContextManager[None]]
) -> Iterator[None]:
    """Enters a context around each forward of the layers, also if it raises an error."""
    entered = ExitStack()

    def enter(layer: Any, _inputs: object) -> None:
        entered.enter_context(context(layer))

    def leave(_layer: object, _inputs: object, _outputs: object) -> None:
        entered.close()

    with entered, ExitStack() as handles:
        for layer in layers:
            handles.enter_context(layer.register_forward_pre_hook(enter))
            handles.enter_context(layer.register_forward_hook(leave, always_call=True))
        yield
