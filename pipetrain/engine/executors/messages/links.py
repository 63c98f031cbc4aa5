"""Links: one direction between two processes, through host memory or from device to device."""

from __future__ import annotations

import math
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property, partial
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from typing_extensions import override

from pipetrain.engine.device_queue import Event, SideStream, event
from pipetrain.engine.errors import ConfigError
from pipetrain.engine.executors.hooks import Around
from pipetrain.engine.executors.messages.control import lost_stage_on_error
from pipetrain.engine.executors.messages.transport import Transport
from pipetrain.engine.number_range import POSITIVE
from pipetrain.engine.tensors import Tensors, bytes_of

_TAGS = 2**30
_LINK_SPEED = "PIPETRAIN_LINK_GIGABYTES_PER_S"
"""Variable that slows links down on purpose, to try on one machine what a slower network does to a pipeline."""
_GIGA = 1e9
_SMALL = 2**14
"""Bytes up to which copying a tensor on both ends costs less than a transfer."""


@dataclass(frozen=True)
class Spec:
    """Shape, strides and dtype of one tensor of a message."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype

    @classmethod
    def of(cls, tensor: Tensor) -> Spec:
        """The spec of `tensor`."""
        return cls(tuple(tensor.shape), tensor.stride(), tensor.dtype)

    def empty(self, device: torch.device) -> Tensor:
        """A fresh tensor of this spec; never a recycled buffer, since autograd keeps what arrives."""
        return torch.empty_strided(self.shape, self.stride, dtype=self.dtype, device=device)


Transfer = Callable[[], object]
"""Waits for the end of a transfer under way."""
Receipt = Callable[[str], Tensors]
"""Takes a message whose shapes are known, described by the argument, onto the device of the stage; waits for it.

Raises LostStageError if the peer is gone.
"""


def transfers_of(sizes: Sequence[int]) -> list[list[int]]:
    """Indices of the tensors in each transfer of a message, by their bytes: small ones together, large ones alone."""
    small = [i for i, size in enumerate(sizes) if 0 < size <= _SMALL]
    return [part for part in (small, *([i] for i, size in enumerate(sizes) if size > _SMALL)) if part]


class Arrival:
    """Memory for a message; each transfer writes the bytes of one of the `buffers`."""

    def __init__(self, specs: Sequence[Spec], device: torch.device) -> None:
        self._tensors = tuple(spec.empty(device) for spec in specs)
        places = [bytes_of(tensor) for tensor in self._tensors]
        self._parts = [[places[i] for i in part] for part in transfers_of([place.nbytes for place in places])]
        self.buffers = [part[0] if len(part) == 1 else part[0].new_empty(sum(map(len, part))) for part in self._parts]

    def unpacked(self) -> Tensors:
        """The tensors, once the transfers are complete; each has memory to itself."""
        for part, buffer in zip(self._parts, self.buffers, strict=True):
            if len(part) > 1:
                torch._foreach_copy_(part, buffer.split([*map(len, part)]))
        return self._tensors


class LinkGroups(NamedTuple):
    """Process groups of one direction, so that forward and backward messages do not wait for each other.

    Attributes:
        payload: for the tensors.
        headers: for their shapes, which travel in host memory.
        channel: index of the link among the `channels` that share its groups: two processes may have several.
    """

    payload: dist.ProcessGroup
    headers: dist.ProcessGroup
    channel: int = 0
    channels: int = 1


class Link(ABC):
    """One direction between this process and the one of rank `peer`, which has the stage `stage`."""

    ahead: int
    """Number of messages that a receiver prepares for before they are taken."""
    posts_ahead: bool
    """True if it also posts their receives, once their shapes are known."""
    tells_ends: bool = False
    """True if `has_ended` tells which sends have ended."""

    def __init__(self, peer: int, stage: int, groups: LinkGroups, links: Links) -> None:
        self.peer = peer
        self.stage = stage
        self.groups = groups
        self._links = links
        self._device = links.transport.device
        self._transfers = 0

    def next_tag(self) -> int:
        """The number of the next transfer, which both ends count alike, and no other channel has."""
        channels = self.groups.channels
        self._transfers = (self._transfers + 1) % (_TAGS // channels)
        return self._transfers * channels + self.groups.channel

    def start_receiving(self, tensor: Tensor, group: dist.ProcessGroup) -> Transfer:
        """Starts to receive a tensor in host memory."""
        with lost_stage_on_error(self.stage):
            return _started(dist.irecv(tensor, self.peer, group, self.next_tag())).wait

    def start_sending(self, tensor: Tensor, group: dist.ProcessGroup) -> Transfer:
        """Starts to send a tensor in host memory."""
        tag = self.next_tag()
        with lost_stage_on_error(self.stage):
            return _started(dist.isend(tensor, self.peer, group, tag)).wait

    @abstractmethod
    def send(self, tensor: Tensor) -> tuple[Tensor, Transfer]:
        """Starts a transfer; what is returned must be kept, unchanged, until it is complete."""

    @abstractmethod
    def expect(self, specs: Sequence[Spec]) -> Receipt:
        """Prepares to receive tensors of these specs, the next of this link."""

    def has_ended(self, _transfer: Transfer) -> bool:
        """True if a send is known to have ended; Gloo only says so to who waits for it."""
        return False

    def wait(self, transfers: Iterable[Transfer], what: str) -> None:
        """Blocks until transfers are complete.

        Raises:
            LostStageError: the peer is gone.
        """
        with lost_stage_on_error(self.stage), self._links.waiting(what):
            for wait in transfers:
                wait()


def given_bytes_per_s() -> float | None:
    """Bandwidth that the environment limits links to; None for no limit.

    Raises:
        ConfigError: it is not a number above 0.
    """
    given = os.environ.get(_LINK_SPEED)
    if given is None:
        return None
    try:
        gigabytes = float(given)
    except ValueError:
        gigabytes = math.nan
    if gigabytes not in POSITIVE:
        raise ConfigError(f"{_LINK_SPEED}={given}: must be {POSITIVE}, such as 0.02; unset, links run at full speed")
    return gigabytes * _GIGA


class SlowLink:
    """Starts transfers in sequence, each when a link of this speed would have carried it."""

    def __init__(self, bytes_per_s: float) -> None:
        self._bytes_per_s = bytes_per_s
        self._free = 0.0
        self._thread = ThreadPoolExecutor(1, "slow link")

    def send(self, start: Callable[[], Transfer], size: int) -> Transfer:
        """Has `start` start a transfer of `size` bytes once the link has carried them; waiting raises its error."""
        self._free = due = max(self._free, time.monotonic()) + size / self._bytes_per_s

        def carry() -> Transfer:
            time.sleep(max(0.0, due - time.monotonic()))
            return start()

        started = self._thread.submit(carry)
        return lambda: started.result()()


class HostLink(Link):
    """A link through host memory; Gloo moves a message only once its receive is posted, so this is done ahead."""

    ahead = 2
    posts_ahead = True

    def __init__(self, peer: int, stage: int, groups: LinkGroups, links: Links) -> None:
        super().__init__(peer, stage, groups._replace(headers=groups.payload), links)
        given = given_bytes_per_s()
        self._slow = None if given is None else SlowLink(given)

    @override
    def send(self, tensor: Tensor) -> tuple[Tensor, Transfer]:
        in_host_memory = tensor.cpu()
        return in_host_memory, self.start_sending(in_host_memory, self.groups.payload)

    @override
    def start_sending(self, tensor: Tensor, group: dist.ProcessGroup) -> Transfer:
        if self._slow is None:
            return super().start_sending(tensor, group)
        tag = self.next_tag()
        return self._slow.send(lambda: _started(dist.isend(tensor, self.peer, group, tag)).wait, tensor.nbytes)

    @override
    def expect(self, specs: Sequence[Spec]) -> Receipt:
        arrival = Arrival(specs, torch.device("cpu"))
        under_way = [self.start_receiving(each, self.groups.payload) for each in arrival.buffers]

        def take(what: str) -> Tensors:
            self.wait(under_way, what)
            return tuple(tensor.to(self._device, non_blocking=True) for tensor in arrival.unpacked())

        return take


@dataclass(frozen=True)
class _Sent:
    """A transfer from a device."""

    end: Event

    def __call__(self) -> None:
        self.end.synchronize()


class DeviceLink(Link):
    """A link from device to device (NCCL).

    A receive occupies the device until the message comes. Were it posted ahead, the message might need what this
    process has yet to queue, and whatever waits for the whole device (cudaFree, loading a kernel) would deadlock. So it
    is posted when the message is taken, in a separate stream, where it starts immediately.
    """

    ahead = 1
    posts_ahead = False
    tells_ends = True

    @cached_property
    def _sent(self) -> SideStream:
        """The stream that waits for what was sent: of this link alone, as neighbors take it in their own time."""
        return SideStream(self._device)

    @override
    def send(self, tensor: Tensor) -> tuple[Tensor, Transfer]:
        with lost_stage_on_error(self.stage, direct=True):
            work = _started(dist.isend(tensor, self.peer, self.groups.payload))  # NCCL knows no tags
            with self._sent.entered():  # the computation does not wait until the neighbor has taken it
                work.wait()
                # the host, not the device, waits until the peer has taken it
                return tensor, _Sent(event(self._device))

    @override
    def has_ended(self, transfer: Transfer) -> bool:
        return isinstance(transfer, _Sent) and transfer.end.query()

    @override
    def expect(self, specs: Sequence[Spec]) -> Receipt:
        return partial(self.receive, specs)

    def receive(self, specs: Sequence[Spec], what: str) -> Tensors:
        """Posts the receives, and has the computation wait for them; the host only waits for the message before."""
        self._links.catch_up(what)
        with self._links.arrivals.entered(), lost_stage_on_error(self.stage, direct=True):
            arrival = Arrival(specs, self._device)
            for buffer in arrival.buffers:
                _started(dist.irecv(buffer, self.peer, self.groups.payload)).wait()
            tensors = arrival.unpacked()
            arrived = event(self._device)
        self._links.took(arrived)
        self._links.arrivals.hand_over(tensors)
        return tensors


def _started(work: dist.Work | None) -> dist.Work:
    assert work is not None, "this process has no part in the group"
    return work


class Links:
    """Makes the links of a process, and keeps its host at most one message ahead of its device.

    A wait for a message is queued on the device, and the host does not feel it. Unchecked, it would run ahead by a
    whole interval: all messages on the way would hold memory, and a stage that waits for a neighbor would seem to hang
    in whatever operation its host happened to block.
    """

    def __init__(self, transport: Transport, waiting: Around = lambda _what: nullcontext()) -> None:
        self.transport = transport
        self.arrivals = SideStream(transport.buffers)
        """The stream of all receives, one of which is under way at a time."""
        self.waiting = waiting
        self._taken: tuple[Event, Event] | None = None

    def to(self, peer: int, stage: int, groups: LinkGroups) -> Link:
        """Link to or from the process `peer`, which has the stage."""
        return (DeviceLink if self.transport.direct else HostLink)(peer, stage, groups, self)

    def catch_up(self, what: str = "the last message") -> None:
        """Blocks until the message taken last has come, and the device has done what was queued before it."""
        if self._taken is not None:
            arrived, computed = self._taken
            with self.waiting(what):
                arrived.synchronize()
            with self.waiting("its device"):  # which may wait for another process, as layers may exchange messages, too
                computed.synchronize()

    def took(self, arrived: Event) -> None:
        """Records that a message was taken; call it before the computation is made to wait for its arrival."""
        self._taken = arrived, event(self.transport.device)
