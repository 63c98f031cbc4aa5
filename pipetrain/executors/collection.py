"""Tensors of several processes brought together in one of them, over a group that is for control."""

from collections.abc import Mapping

import torch
import torch.distributed as dist
from torch import Tensor

from pipetrain.executors import exchange
from pipetrain.executors.hooks import Around
from pipetrain.tensors import Tensors, dense, empty_dense, flat

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


def gathered(own: Tensors, group: dist.ProcessGroup) -> list[Tensors]:
    """The tensors that each process of a group gives, in the group's first process; none elsewhere. All call it.

    Raises:
        LostStageError: a process is gone.
    """
    own = tuple(dense(tensor.detach()) for tensor in own)
    announced = exchange.from_all([_announcement("", tensor) for tensor in own], group)
    if dist.get_rank(group):
        for tensor in own:
            with exchange.connected():
                _send(tensor, 0, group)
        return []
    found = [tuple(tensor.cpu() for tensor in own)]
    for source, tensors in enumerate(announced[1:], start=1):
        received = tuple(
            empty_dense(tuple(shape), tuple(stride), getattr(torch, dtype), _CPU) for _, shape, stride, dtype in tensors
        )
        for tensor in received:
            with exchange.connected():
                _receive(tensor, source, group)
        found.append(received)
    return found


def _announcement(name: str, tensor: Tensor) -> tuple[str, list[int], list[int], str]:
    return name, list(tensor.shape), list(tensor.stride()), str(tensor.dtype).removeprefix("torch.")


def _send(tensor: Tensor, destination: int, group: dist.ProcessGroup | None = None) -> None:
    if tensor.numel():
        dist.send(flat(tensor).view(torch.uint8).cpu(), group=group, group_dst=destination)


def _receive(tensor: Tensor, source: int, group: dist.ProcessGroup | None = None) -> None:
    if tensor.numel():
        dist.recv(flat(tensor).view(torch.uint8), group=group, group_src=source)
