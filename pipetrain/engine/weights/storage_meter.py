"""Counts the sets of weights in memory by weak references to their storages, independent of any bookkeeping."""

import gc
import math
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from pipetrain.engine.device_queue import queued

_expired: Callable[[int], bool] = torch._C.StorageBase._expired  # type: ignore[attr-defined]
"""True if a storage is gone, given a weak reference to it; `StorageWeakRef.expired` at a fifth of the time."""
_LOOKS, _MOMENT = 5, 0.002
_PATIENCE_SECONDS = 10.0
"""Seconds that the thread of a device may take to let go of a graph: it may have lost its core."""


@dataclass(eq=False, slots=True)
class _Seen:
    """A storage that was alive at the last reading: reference, bytes, and number of the set that it holds."""

    ref: StorageWeakRef
    size: int
    number: int


@dataclass
class StorageMeter:
    """The sets of weights in memory, whatever refers to them.

    Memory that is kept for another set counts for the last one that it held.

    Attributes:
        release: frees memory that is kept for further sets.
        versions_max: most sets of weights in memory at a reading.
        versions_since: the same since the last `mark`.
        bytes_peak: most bytes in memory at a reading.
    """

    release: Callable[[], object] = lambda: None
    versions_max: int = 0
    versions_since: int = 0
    bytes_peak: int = 0
    _allowed: float = math.inf
    _watched: int = 0
    _seen: dict[int, _Seen] = field(default_factory=dict)
    _sets: defaultdict[int, int] = field(default_factory=lambda: defaultdict(int))
    _bytes: int = 0
    _queued: bool = False

    def watch(self, tensors: Mapping[str, Tensor]) -> None:
        """Adds the storages of one version or prediction, and takes a reading."""
        self._watched += 1
        number, known = self._watched, self._seen
        for tensor in tensors.values():
            storage = tensor.untyped_storage()
            address = storage._cdata
            seen = known.pop(address, None)
            if seen is None:  # the reference keeps the address from becoming another storage's
                seen = _Seen(StorageWeakRef(storage), storage.nbytes(), number)
                self._bytes += seen.size
            else:
                self._leave(seen.number)
                seen.number = number
            known[address] = seen
            self._sets[number] += 1
        self._queued = queued(tensors)
        self.read()

    def _leave(self, number: int) -> None:
        """Counts a storage less in a set."""
        self._sets[number] -= 1
        if not self._sets[number]:
            del self._sets[number]

    def mark(self, allowed: float = math.inf) -> None:
        """Resets `versions_since`; more than `allowed` sets are from now on only counted if they stay in memory."""
        self.versions_since = 0
        self._allowed = allowed
        self.read()

    def read(self) -> None:
        """Updates the maxima: sets of weights with a storage alive, and the bytes of the storages alive.

        The search for freed storages begins with those checked longest ago, and ends as soon as no maximum can be
        exceeded: of hundreds of sets nearly all are alive. On a device that queues, a maximum counts only
        after a moment, as autograd's thread of the device lets go of a graph just after the backward has returned. What
        exceeds the allowed number may be a graph in a reference cycle of the user's, or that thread may be late.
        """
        self._forget_gone()
        for _ in range(_LOOKS if self._queued else 0):
            if not self._may_exceed:
                break
            time.sleep(_MOMENT)
            self._forget_gone()
        if self.versions_since <= self._allowed < len(self._sets):
            self._await_release()
        self.versions_max = max(self.versions_max, len(self._sets))
        self.versions_since = max(self.versions_since, len(self._sets))
        self.bytes_peak = max(self.bytes_peak, self._bytes)

    def _await_release(self) -> None:
        collected = gc.collect()
        deadline = time.monotonic() + (_PATIENCE_SECONDS if self._queued else 0.0)
        while True:
            self.release()
            self._forget_gone()
            if len(self._sets) <= self._allowed:
                return
            if collected:  # which may have held a graph that only the next collection finds
                collected = gc.collect()
            elif time.monotonic() >= deadline:
                return
            else:
                time.sleep(_MOMENT)

    def _forget_gone(self) -> None:
        for address in tuple(self._seen) if self._may_exceed else ():
            seen = self._seen.pop(address)
            if not _expired(seen.ref.cdata):
                self._seen[address] = seen  # looked at after all others the next time
                continue
            self._bytes -= seen.size
            self._leave(seen.number)
            if not self._may_exceed:
                return

    @property
    def _may_exceed(self) -> bool:
        return len(self._sets) > self.versions_since or self._bytes > self.bytes_peak
