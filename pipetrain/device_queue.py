"""What a device has queued: events in its streams, a stream beside the computation, copies on their way to the host.

On the CPU an operation is complete when it returns, so nothing is queued and no wait lasts. On any other device these
are thin names for the streams and events of `torch.get_device_module`.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import torch
from torch import Tensor


class Event(Protocol):
    """A point in a stream of the device."""

    def synchronize(self) -> None:
        """Blocks the host until the device has reached it."""
        ...

    def query(self) -> bool:
        """True if the device has reached it."""
        ...


class _Reached:
    """The event of a device that queues nothing."""

    def synchronize(self) -> None:
        """Returns at once."""

    def query(self) -> bool:
        """True."""
        return True


def queues(device: torch.device) -> bool:
    """True if operations on the device return before they are complete."""
    return device.type != "cpu"


def event(device: torch.device, *, timed: bool = False) -> Any:
    """An event behind all that the current stream has queued; with `timed`, one that `elapsed_time` takes."""
    if not queues(device):
        return _Reached()
    found = torch.get_device_module(device).Event(enable_timing=timed)
    found.record(torch.get_device_module(device).current_stream(device))
    return found


def synchronize(device: torch.device) -> None:
    """Blocks the host until the current stream has completed all that it has queued.

    Never the whole device: another stream may hold a receive whose message needs what this process has yet to do.
    """
    if queues(device):
        torch.get_device_module(device).current_stream(device).synchronize()


class SideStream:
    """A stream beside that of the computation, whose operations do not wait for it.

    Args:
        device: of the stream; the CPU has none, and everything there is in order anyway.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._module = torch.get_device_module(device) if queues(device) else None
        self._stream = self._module.Stream(device) if self._module is not None else None

    def entered(self) -> AbstractContextManager[Any]:
        """The context in which operations go into this stream, and fresh memory belongs to it."""
        return nullcontext() if self._module is None else self._module.stream(self._stream)

    def hand_over(self, tensors: Sequence[Tensor]) -> None:
        """Has the current stream wait for all that this one has queued, and lends it memory of this one."""
        if self._module is None:
            return
        current = self._module.current_stream(self._device)
        current.wait_stream(self._stream)
        for tensor in tensors:
            tensor.record_stream(current)


class HostCopies:
    """Copies of tensors in page-locked host memory, on their way there while the host goes on.

    Args:
        tensors: to copy; those of the CPU are copied at once.
        memory: of earlier copies of such tensors, which nobody reads any more.
    """

    def __init__(self, tensors: Sequence[Tensor], memory: Sequence[Tensor] | None = None) -> None:
        self._copies = [_host_memory(tensor) for tensor in tensors] if memory is None else list(memory)
        for copy, tensor in zip(self._copies, tensors, strict=True):
            copy.copy_(tensor.detach(), non_blocking=True)
        devices = {tensor.device for tensor in tensors if queues(tensor.device)}
        self._events = [event(device) for device in devices]

    @property
    def ready(self) -> bool:
        """True if all copies are complete."""
        return all(each.query() for each in self._events)

    def take(self) -> list[Tensor]:
        """The copies, once they are complete; blocks the host until then."""
        for each in self._events:
            each.synchronize()
        return self._copies


def _host_memory(tensor: Tensor) -> Tensor:
    """Fresh host memory of the tensor's shape and order; page-locked where it is to be copied from a device."""
    memory = torch.empty_like(tensor, device="cpu")
    return memory.pin_memory() if queues(tensor.device) else memory
