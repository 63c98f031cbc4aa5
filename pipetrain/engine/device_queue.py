"""Queued work of a device: events in its streams, a side stream, page-locked memory, and ways to avoid waits and
launches.

On the CPU an operation is complete when it returns, so nothing is queued and no wait lasts. On any other device these
are thin names for the streams and events of `torch.get_device_module`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import torch
from torch import Tensor

_IN_CACHE = 2**18
"""Bytes of weights that the CPU's caches hold from one operation on them to the next."""
_NUMBERS = 8
"""Numbers of one size that may be on their way to the host."""


class Event(Protocol):
    """A point in a stream of the device."""

    def synchronize(self) -> None:
        """Blocks the host until the device has reached it."""

    def query(self) -> bool:
        """True if the device has reached it."""


class _Reached:
    """The event of a device that queues nothing."""

    def synchronize(self) -> None:
        """Returns immediately: there is nothing to wait for."""

    def query(self) -> bool:
        """Always true."""
        return True


def queues(device: torch.device) -> bool:
    """True if operations on the device return before they are complete."""
    return device.type != "cpu"


def queued(tensors: Mapping[str, Tensor]) -> bool:
    """The same of tensors that are on one device; False without any."""
    first = next(iter(tensors.values()), None)
    return first is not None and queues(first.device)


def event(device: torch.device, *, timed: bool = False) -> Any:
    """An event after all operations queued in the current stream; with `timed`, one that `elapsed_time` takes."""
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
    """A stream separate from the computation's, which does not wait for it; without effect on the CPU."""

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


def page_locked(size: int) -> Tensor:
    """Page-locked host memory of `size` bytes.

    Taking it may wait for the whole device, and so for a neighbor that has yet to take what this process sends: take it
    before the processes are connected, or when the pipeline has drained.
    """
    return torch.empty(size, dtype=torch.uint8).pin_memory()


def lock_numbers() -> None:
    """Has torch's cache hold page-locked memory for numbers that layers read from a device, as `item()` does."""
    [page_locked(size) for size in (1, 2, 4, 8, 16) for _ in range(_NUMBERS)]  # freed together


def numbers(scalars: Sequence[Tensor]) -> list[Any]:
    """The values of tensors of one element each; the host waits once for all of a device that are of one type."""
    found: list[Any] = [None] * len(scalars)
    alike = defaultdict(list)
    for i, scalar in enumerate(scalars):
        if queues(scalar.device):
            alike[scalar.device, scalar.dtype].append(i)
        else:
            found[i] = scalar.item()
    for places in alike.values():
        values = torch.stack([scalars[i].detach().reshape(()) for i in places]).tolist()
        for i, value in zip(places, values, strict=True):
            found[i] = value
    return found


def together(tensors: Mapping[str, Tensor]) -> list[list[str]]:
    """The names of one device's tensors in groups, each for one call of every `torch._foreach_*` in a formula.

    A device takes all in one group, as each launch costs the host more than small weights cost the device. The CPU
    takes what its caches hold from one operation to the next.
    """
    groups: list[list[str]] = []
    room = 0
    unlimited = queued(tensors)
    for name, tensor in tensors.items():
        size = 0 if unlimited else tensor.nbytes
        if not groups or size > room:
            groups.append([])
            room = _IN_CACHE
        groups[-1].append(name)
        room -= size
    return groups
