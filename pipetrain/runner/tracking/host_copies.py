"""Copies of tensors in host memory: of losses, and of the tensors of a checkpoint."""

from collections import deque
from collections.abc import Sequence

import torch
from torch import Tensor

from pipetrain.engine.device_queue import Event, event, page_locked, queues
from pipetrain.engine.tensors import bytes_of, dense

BLOCK_BYTES = 2**25
"""Size of a block of page-locked memory."""
_BLOCKS = 2


class HostCopy:
    """A copy of a tensor in host memory, page-locked if it comes from a device, made while the host continues.

    Args:
        tensor: to copy; a CPU tensor is copied immediately.
        memory: of an earlier copy, which is no longer read, or from `page_locked`. None takes some for a tensor of a
            device, which may wait for the whole device.

    Attributes:
        memory: page-locked, that the copy is in; None if it needs none.
    """

    def __init__(self, tensor: Tensor, memory: Tensor | None = None) -> None:
        if queues(tensor.device):
            memory = page_locked(tensor.nbytes) if memory is None else memory
            place = memory[: tensor.nbytes].view(tensor.dtype).view(tensor.shape)
        else:
            place = torch.empty_like(tensor)
        self.memory = memory
        self._copy = place.copy_(tensor.detach(), non_blocking=True)
        self._copied = event(tensor.device)

    def take(self) -> Tensor:
        """The copy, once it is complete; blocks the host until then."""
        self._copied.synchronize()
        return self._copy


def host_copies(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Copies in ordinary memory, each of its tensor's size; blocks the host until they are complete.

    A device copies into page-locked memory several times as fast as into ordinary memory. But torch rounds such memory
    up to a power of two, and never gives it back. So the bytes of a device pass through two small blocks in turn.
    Taking these may wait for the whole device: call this when the pipeline has drained.
    """
    sources = [dense(tensor.detach()) for tensor in tensors]
    copies = [torch.empty_like(source, device="cpu") for source in sources]
    pieces: list[tuple[Tensor, Tensor]] = []
    for source, copy in zip(sources, copies, strict=True):
        if queues(source.device):
            parts = (bytes_of(each).split(BLOCK_BYTES) for each in (source, copy))
            pieces += zip(*parts, strict=True)
        else:
            copy.copy_(source)
    _through_blocks(pieces)
    return copies


def _through_blocks(pieces: Sequence[tuple[Tensor, Tensor]]) -> None:
    """Copies bytes of a device to bytes of the host, pair by pair."""
    free = [page_locked(BLOCK_BYTES) for _ in range(_BLOCKS)] if pieces else []
    under_way: deque[tuple[Event, Tensor, Tensor]] = deque()

    def finish() -> Tensor:
        copied, block, target = under_way.popleft()
        copied.synchronize()
        target.copy_(block[: target.nbytes])
        return block

    for source, target in pieces:
        block = free.pop() if free else finish()
        block[: source.nbytes].copy_(source, non_blocking=True)
        under_way.append((event(source.device), block, target))
    while under_way:
        finish()
