"""Messages between neighboring stages: tuples of tensors of any shape, received ahead, sent without waiting."""

import copy
from collections import deque
from collections.abc import Hashable, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass
from itertools import chain, islice
from typing import NamedTuple

import torch
from torch import Tensor

from pipetrain.engine.data.minibatches import Minibatches, microbatch_sizes
from pipetrain.engine.errors import RunError
from pipetrain.engine.executors.messages.links import Link, Receipt, Spec, Transfer, transfers_of
from pipetrain.engine.program.drain_interval import DrainInterval
from pipetrain.engine.stage.module import BackwardId
from pipetrain.engine.tensors import Tensors, bytes_of, dense, storage_pointers

Key = Hashable
"""Key that determines a message's shapes: of the messages with one key, only the first announces its shapes.

If nothing determines them, the key is None, and each message announces its own shapes.
"""

_END = object()
_HEADER_WORDS = 8192
_DTYPES = (
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.complex64, torch.complex128,
    torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool, torch.float8_e4m3fn, torch.float8_e5m2,
)  # fmt: skip


def encode(specs: Sequence[Spec]) -> Tensor:
    """The specs of a message as a fixed number of int64 words.

    Raises:
        ValueError: more tensors or dimensions than a header holds.
    """
    words: list[int] = []
    for spec in specs:
        words += [_DTYPES.index(spec.dtype), len(spec.shape), *spec.shape, *spec.stride]
    if len(words) >= _HEADER_WORDS:
        raise ValueError(
            f"a cut with {len(specs)} tensors: the shapes of one message take less than {_HEADER_WORDS} words"
        )
    header = torch.zeros(_HEADER_WORDS, dtype=torch.int64)
    header[: len(words) + 1] = torch.tensor([len(words), *words])
    return header


def decode(header: Tensor) -> tuple[Spec, ...]:
    """The inverse of `encode`."""
    words = iter(header[1 : 1 + int(header[0])].tolist())
    specs = []
    for dtype, dimensions in zip(words, words, strict=False):
        shape, stride = (tuple(islice(words, dimensions)) for _ in range(2))
        specs.append(Spec(shape, stride, _DTYPES[dtype]))
    return tuple(specs)


class _UnderWay(NamedTuple):
    """A transfer, the tensor that it keeps alive, and the number of the device's bytes that it alone keeps."""

    kept: Tensor
    end: Transfer
    bytes: int = 0


class Outgoing:
    """Messages to a neighbor. `send` never waits for the peer; `settle` drops what has surely arrived."""

    def __init__(self, link: Link, what: str) -> None:
        self._link = link
        self._what = what
        self._specs: dict[Key, tuple[Spec, ...]] = {}
        self._coming: Iterator[Key] = iter(())
        self._pending: deque[list[_UnderWay]] = deque()

    def begin(self, keys: Iterable[Key]) -> None:
        """Sets the messages that the peer expects, in order."""
        self._coming = iter(keys)

    def send(self, key: Key, tensors: Tensors, kept: Set[int] = frozenset()) -> None:
        """Sends one message of `key`; the stage keeps the storages at the addresses `kept` in any case.

        Raises:
            RunError: its shapes differ from the key's first message; the peer would misread it.
        """
        next(self._coming, None)
        tensors = tuple(dense(tensor.detach()) for tensor in tensors)
        specs = tuple(Spec.of(tensor) for tensor in tensors)
        message = []
        if key is None or key not in self._specs:
            self._specs[key] = specs
            message.append(self._header(specs))
        elif specs != self._specs[key]:
            raise RunError(
                f"{self._what} for microbatches {key} changed from {self._specs[key]} to {specs}; samples that differ "
                "in shape need minibatches of the split's own (`batches`), and a layer's output shape may depend on "
                "its input's shape alone"
            )
        self._pending.append(message + self._payload(tensors, kept))

    @property
    def pending_bytes(self) -> int:
        """Number of bytes that the stage's device keeps only for transfers that may not have ended."""
        return sum(sent.bytes for message in self._pending for sent in message)

    def _header(self, specs: Sequence[Spec]) -> _UnderWay:
        header = encode(specs)
        return _UnderWay(header, self._link.start_sending(header, self._link.groups.headers))

    def _payload(self, tensors: Tensors, kept: Set[int] = frozenset()) -> list[_UnderWay]:
        payload = []
        for part in transfers_of([tensor.nbytes for tensor in tensors]):
            content = [bytes_of(tensors[i]) for i in part]
            sent, end = self._link.send(content[0] if len(part) == 1 else torch.cat(content))
            alone = sent.device == content[0].device and not storage_pointers([sent]) <= kept
            payload.append(_UnderWay(sent, end, sent.nbytes if alone else 0))
        return payload

    def fill(self) -> None:
        """Ends the receives that the peer has posted for messages that will not be sent, with zeros."""
        for key in islice(self._coming, self._link.ahead):
            if key is None or key not in self._specs:
                self._pending.append([self._header(())])
                break
            if self._link.posts_ahead:
                zeros = tuple(spec.empty(torch.device("cpu")).zero_() for spec in self._specs[key])
                self._pending.append(self._payload(zeros))
        self._coming = iter(())

    def settle(self, keep: int) -> None:
        """Frees the buffers that are known to have arrived; waits for all messages but the newest `keep`."""
        if self._link.tells_ends:
            for message in self._pending:
                message[:] = [sent for sent in message if not self._link.has_ended(sent.end)]
        while len(self._pending) > keep:
            if message := self._pending.popleft():
                self._link.wait((sent.end for sent in message), f"{self._what} to be taken")


@dataclass
class _Expected:
    """A message that this process has prepared for: its header is on its way, or its shapes are known."""

    key: Key
    header: tuple[Tensor, Transfer] | None = None
    receipt: Receipt | None = None


class Incoming:
    """Messages from a neighbor, in the order of `expect`; receives are posted ahead of their use."""

    def __init__(self, link: Link, what: str) -> None:
        self._link = link
        self._what = what
        self._specs: dict[Key, tuple[Spec, ...]] = {}
        self._coming: Iterator[Key] = iter(())
        self._expected: deque[_Expected] = deque()

    def expect(self, keys: Iterable[Key]) -> None:
        """Adds the messages that come next."""
        self._coming = chain(self._coming, keys)
        self._prepare()

    def begin(self, keys: Iterable[Key]) -> None:
        """Sets the messages that come next, in order."""
        assert not self._expected, "messages of the last interval are still expected"
        self.expect(keys)

    def discard(self) -> None:
        """Waits for what the peer has sent in place of messages that are prepared for (`Outgoing.fill`)."""
        for message in self._expected:
            if message.header is not None:
                self._link.wait([message.header[1]], self._what)
            elif message.receipt is not None and self._link.posts_ahead:
                message.receipt(self._what)
        self._expected.clear()
        self._coming = iter(())

    def take(self) -> Tensors:
        """The next message; waits for it.

        Raises:
            LostStageError: the peer is gone.
        """
        self._prepare()
        message = self._expected.popleft()
        receipt = message.receipt
        if receipt is None:
            assert message.header is not None
            header, transfer = message.header
            self._link.wait([transfer], self._what)
            self._specs[message.key] = decode(header)
            receipt = self._link.expect(self._specs[message.key])
        self._prepare()
        return receipt(self._what)

    def _prepare(self) -> None:
        # both ends count their transfers in order, and those of a message whose header is awaited have yet to begin
        while len(self._expected) < self._link.ahead and all(message.header is None for message in self._expected):
            if (key := next(self._coming, _END)) is _END:
                return
            self._expected.append(self._prepared(key))

    def _prepared(self, key: Key) -> _Expected:
        if key is not None and key in self._specs:
            return _Expected(key, receipt=self._link.expect(self._specs[key]))
        header = torch.empty(_HEADER_WORDS, dtype=torch.int64)
        return _Expected(key, (header, self._link.start_receiving(header, self._link.groups.headers)))


def evaluation_keys(loader: Minibatches) -> list[Key]:
    """The keys of the messages of an evaluation, one for each part."""
    return [None if _may_vary(loader, size) else ("evaluation", size) for size in loader.sizes(0)]


class TrainingKeys:
    """The keys of an interval's messages: each microbatch's, and those of the gradients of whole minibatches."""

    def __init__(self, loader: Minibatches, interval: DrainInterval, num_microbatches: int) -> None:
        self._start = interval.start
        self._sizes = loader.sizes(interval.epoch)[interval.first : interval.last]
        self._of_size = {
            size: None if _may_vary(loader, size) else microbatch_sizes(size, num_microbatches)
            for size in {*self._sizes}
        }
        """Size of a minibatch -> those of its microbatches; None if it may vary in shape."""
        self._form: Hashable = None

    def with_form(self, form: Hashable) -> "TrainingKeys":
        """The keys of messages of this form, in place of plain ones."""
        keys = copy.copy(self)
        keys._form = form
        return keys

    def __getitem__(self, message: BackwardId) -> Key:
        t, j = message
        size = self._sizes[t - self._start]
        parts = self._of_size[size]
        if parts is None:
            return None
        key = ("minibatch", size) if j is None else parts[j]
        return key if self._form is None else (self._form, key)


def _may_vary(loader: Minibatches, size: int) -> bool:
    """True if two minibatches of this size can differ in shape."""
    return loader.varying or size == 1
