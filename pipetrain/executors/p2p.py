"""Messages between neighboring stages: tuples of tensors of any shape, received ahead, sent without waiting."""

import datetime
from collections import deque
from collections.abc import Callable, Hashable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor

from pipetrain.errors import LostStageError
from pipetrain.executors.slow_link import SlowLink, Transfer, given_bytes_per_s
from pipetrain.tensors import Tensors, dense, empty_dense, flat

Key = Hashable
"""What decides a message's shapes; messages of one key have the same, and only the first of each announces them.

Where nothing decides them the key is None, and each message announces its own.
"""

AHEAD = 2
"""Receives posted before they are needed."""

NEVER = datetime.timedelta(days=30)
"""A timeout of torch's would close a connection that is merely slow; hangs are the watchdog's to find."""

_HEADER_WORDS = 8192
_DTYPES = (
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.complex64, torch.complex128,
    torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool,
)  # fmt: skip
_TAGS = 2**30


@dataclass(frozen=True)
class Spec:
    """Shape, strides and dtype of one tensor of a message."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype

    @classmethod
    def of(cls, tensor: Tensor) -> "Spec":
        """The spec of `tensor`."""
        return cls(tuple(tensor.shape), tensor.stride(), tensor.dtype)

    def empty(self, device: torch.device) -> Tensor:
        """A fresh tensor of this spec."""
        return empty_dense(self.shape, self.stride, self.dtype, device)


def encode(specs: Iterable[Spec]) -> Tensor:
    """The specs of a message as a fixed number of int64 words.

    Raises:
        ValueError: more tensors or dimensions than a header holds.
    """
    words: list[int] = []
    count = 0
    for spec in specs:
        words += [_DTYPES.index(spec.dtype), len(spec.shape), *spec.shape, *spec.stride]
        count += 1
    if len(words) >= _HEADER_WORDS:
        raise ValueError(f"a cut with {count} tensors: the shapes of one message take at most {_HEADER_WORDS} words")
    return torch.tensor([count, *words, *[0] * (_HEADER_WORDS - 1 - len(words))])


def decode(header: Tensor) -> tuple[Spec, ...]:
    """The inverse of `encode`."""
    words = iter(header.tolist())
    specs = []
    for _ in range(next(words)):
        dtype, dimensions = _DTYPES[next(words)], next(words)
        shape = tuple(next(words) for _ in range(dimensions))
        specs.append(Spec(shape, tuple(next(words) for _ in range(dimensions)), dtype))
    return tuple(specs)


@dataclass
class Link:
    """One direction between this process and a neighbor.

    Attributes:
        peer: the neighbor's rank.
        stage: its stage, for error messages.
        group: the process group of this direction alone: forward and backward traffic must not wait on each other.
        device: where this stage computes; what travels is in host memory unless `device_to_device`.
        device_to_device: whether the group moves the device's own memory (NCCL).
        waiting: a context around every wait, told what is waited for.
    """

    peer: int
    stage: int
    group: dist.ProcessGroup
    device: torch.device
    device_to_device: bool
    waiting: Callable[[str], AbstractContextManager[None]] = lambda _what: nullcontext()
    _sequence: int = 0
    _slow: SlowLink | None = None

    def __post_init__(self) -> None:
        given = None if self.device_to_device else given_bytes_per_s()
        self._slow = None if given is None else SlowLink(given)

    @property
    def wire_device(self) -> torch.device:
        """Where buffers must live for this group."""
        return self.device if self.device_to_device else torch.device("cpu")

    def next_tag(self) -> int:
        """Both ends number their transfers alike."""
        self._sequence = (self._sequence + 1) % _TAGS
        return self._sequence

    def wait(self, works: Iterable[Transfer], what: str) -> None:
        """Waits for transfers.

        Raises:
            LostStageError: the peer is gone.
        """
        try:
            with self.waiting(what):
                for work in works:
                    work.wait()
        except RuntimeError as error:
            raise LostStageError(self.stage) from error

    def send(self, tensor: Tensor) -> tuple[Tensor, Transfer]:
        """Starts a transfer; the tensor must be kept, unchanged, until the work was waited for."""
        tag = self.next_tag()
        if self._slow is not None:
            return tensor, self._slow.send(lambda: dist.isend(tensor, self.peer, self.group, tag), tensor.nbytes)
        try:
            work = dist.isend(tensor, self.peer, self.group, tag)
        except RuntimeError as error:
            raise LostStageError(self.stage) from error
        assert work is not None
        return tensor, work

    def receive(self, tensor: Tensor) -> dist.Work:
        """Starts a transfer into `tensor`."""
        try:
            work = dist.irecv(tensor, self.peer, self.group, self.next_tag())
        except RuntimeError as error:
            raise LostStageError(self.stage) from error
        assert work is not None
        return work


class Outgoing:
    """Messages to a neighbor. `send` never waits for the peer; `settle` drops what has surely arrived."""

    def __init__(self, link: Link, what: str) -> None:
        self._link = link
        self._what = what
        self._specs: dict[Key, tuple[Spec, ...]] = {}
        self._pending: deque[list[tuple[Tensor, Transfer]]] = deque()

    def send(self, key: Key, tensors: Tensors) -> None:
        """Sends one message of `key`.

        Raises:
            ValueError: its shapes are not those of the key's first message; the peer would misread it.
        """
        tensors = tuple(dense(tensor.detach()) for tensor in tensors)
        specs = tuple(Spec.of(tensor) for tensor in tensors)
        message = []
        if key is None or key not in self._specs:
            self._specs[key] = specs
            message.append(self._link.send(encode(specs).to(self._link.wire_device)))
        elif specs != self._specs[key]:
            raise ValueError(
                f"{self._what} for microbatches {key} changed from {self._specs[key]} to {specs}; "
                "a layer's output shape may depend on its input's shape alone"
            )
        for tensor in tensors:
            if tensor.numel():
                buffer = flat(tensor).view(torch.uint8).to(self._link.wire_device)
                message.append(self._link.send(buffer))
        self._pending.append(message)

    def settle(self, keep: int) -> None:
        """Waits for all but the newest `keep` messages, and frees their buffers."""
        while len(self._pending) > keep:
            self._link.wait((work for _, work in self._pending.popleft()), f"{self._what} to be taken")


@dataclass
class _Posted:
    key: Key
    header: tuple[Tensor, dist.Work] | None = None
    buffers: list[Tensor] = field(default_factory=list)
    works: list[dist.Work] = field(default_factory=list)


class Incoming:
    """Messages from a neighbor, in the order of `expect`; receives are posted ahead of their use."""

    def __init__(self, link: Link, what: str) -> None:
        self._link = link
        self._what = what
        self._specs: dict[Key, tuple[Spec, ...]] = {}
        self._expected: deque[Key] = deque()
        self._posted: deque[_Posted] = deque()

    def expect(self, keys: Iterable[Key]) -> None:
        """Says which messages come next."""
        self._expected.extend(keys)
        self._post()

    def begin(self, keys: Iterable[Key]) -> None:
        """Says which messages come from now on, in place of those that were expected and never sent.

        A list that ended early, for a pause, goes on where it ended, so the receives that are posted are of the first.
        """
        self._expected = deque(keys)
        for message in self._posted:
            assert self._expected.popleft() == message.key, "a list that goes on elsewhere"
        self._post()

    def take(self) -> Tensors:
        """The next message; waits for it.

        Raises:
            LostStageError: the peer is gone.
        """
        self._post()
        message = self._posted.popleft()
        if message.header is not None:
            buffer, work = message.header
            self._link.wait([work], self._what)
            with self._link.waiting(self._what):  # NCCL's wait queues one on the device; reading is what waits here
                self._specs[message.key] = decode(buffer)
            self._post_payload(message)
            message.header = None
        self._post()
        self._link.wait(message.works, self._what)
        return tuple(tensor.to(self._link.device, non_blocking=True) for tensor in message.buffers)

    def _post(self) -> None:
        while self._expected and len(self._posted) < AHEAD:
            if any(message.header is not None for message in self._posted):
                return  # both ends number their transfers in order, and that message's own are not posted yet
            message = _Posted(self._expected.popleft())
            if message.key is not None and message.key in self._specs:
                self._post_payload(message)
            else:
                header = torch.empty(_HEADER_WORDS, dtype=torch.int64, device=self._link.wire_device)
                message.header = header, self._link.receive(header)
            self._posted.append(message)

    def _post_payload(self, message: _Posted) -> None:
        for spec in self._specs[message.key]:
            tensor = spec.empty(self._link.wire_device)
            message.buffers.append(tensor)
            if tensor.numel():
                message.works.append(self._link.receive(flat(tensor).view(torch.uint8)))


def meet(source: int, target: int, group: dist.ProcessGroup, device: torch.device) -> None:
    """A first message from one process to another, where this process is one of them.

    NCCL connects two processes in their first call, which returns when both have made it. A run begins by posting
    receives: each neighbor would call for its own direction, and wait for the other for ever.
    """
    if dist.get_rank() == source:
        dist.send(torch.zeros(1, device=device), target, group)
    elif dist.get_rank() == target:
        dist.recv(torch.zeros(1, device=device), source, group)
