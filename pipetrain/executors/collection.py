"""Tensors of all processes brought together in one of them, over the group that is for control."""

from collections.abc import Mapping

import torch
import torch.distributed as dist
from torch import Tensor

from pipetrain.executors import exchange
from pipetrain.executors.hooks import Around
from pipetrain.tensors import dense, empty_dense, flat

_CPU = torch.device("cpu")
_WHAT = "the weights of another stage"


def collected(own: Mapping[str, Tensor], destination: int, waiting: Around) -> dict[str, Tensor] | None:
    """The tensors of all processes by name, in the process `destination`; None elsewhere. All call it together.

    One tensor travels at a time, in host memory. Where two processes have one name, that of the later one counts.

    Raises:
        LostStageError: a process is gone.
    """
    own = {name: dense(tensor.detach()) for name, tensor in own.items()}
    with waiting("all stages"):
        announced = exchange.from_all([_announcement(name, tensor) for name, tensor in own.items()])
    if dist.get_rank() != destination:
        for tensor in own.values():
            with waiting("the last stage to take the weights"), exchange.connected():
                _send(tensor, destination)
        return None
    found: dict[str, Tensor] = {}
    for source, tensors in enumerate(announced):
        if source == destination:
            found |= own
            continue
        for name, shape, stride, dtype in tensors:
            found[name] = empty_dense(tuple(shape), tuple(stride), getattr(torch, dtype), _CPU)
            with waiting(_WHAT), exchange.connected():
                _receive(found[name], source)
    return found


def _announcement(name: str, tensor: Tensor) -> tuple[str, list[int], list[int], str]:
    return name, list(tensor.shape), list(tensor.stride()), str(tensor.dtype).removeprefix("torch.")


def _send(tensor: Tensor, destination: int) -> None:
    if tensor.numel():
        dist.send(flat(tensor).view(torch.uint8).cpu(), destination)


def _receive(tensor: Tensor, source: int) -> None:
    if tensor.numel():
        dist.recv(flat(tensor).view(torch.uint8), source)
