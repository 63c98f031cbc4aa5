"""The device's memory, which is the host's, and which of the host's is page-locked."""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from support.fake_gpu.host_waits import GARBAGE, NAME, setting
from support.fake_gpu.streams import Point, Stream, current_stream, device_wide_wait
from torch.multiprocessing.reductions import StorageWeakRef

_lock = threading.RLock()
_torch_clone = torch.UntypedStorage.clone


SIZE = 16 * 2**30
"""Bytes that the device says it has."""


def allocated(_device: Any = None) -> int:
    return _allocated


def peak(_device: Any = None) -> int:
    return _peak


@dataclass
class Block:
    """Memory of the device."""

    bytes: torch.Tensor
    stream: Stream
    storage: StorageWeakRef
    lent_to: set[int] = field(default_factory=set)
    points: list[Point] = field(default_factory=list)


@dataclass
class Locked:
    """Page-locked memory of the host, of a size that torch's allocator rounds up to."""

    size: int
    storage: StorageWeakRef
    copied_in: set[int] = field(default_factory=set)
    points: list[Point] = field(default_factory=list)


blocks: dict[int, Block] = {}
_freed: list[Block] = []
_locked: dict[int, Locked] = {}
_unlocked: list[Locked] = []
_cached: Counter[int] = Counter()
"""Size -> blocks of page-locked memory that torch's allocator keeps."""
_allocated, _peak, _allocations = 0, 0, itertools.count(1)


def release() -> None:
    """Fills what nobody holds any more with garbage, in the order of its own stream."""
    global _allocated
    with _lock:
        _release_locked()
        for address in [address for address, block in blocks.items() if block.storage.expired()]:
            block = blocks.pop(address)
            _allocated -= block.bytes.nbytes
            block.points = [Stream.all[number].mark() for number in block.lent_to]
            _freed.append(block)
        # in order: memory that is lent waits here, without holding up its stream
        done = [block for block in _freed if all(point.reached() for point in block.points)]
        _freed[:] = [block for block in _freed if not any(block is each for each in done)]
        for block in done:
            block.stream.put(partial(block.bytes.fill_, GARBAGE))


def _release_locked() -> None:
    """Gives page-locked memory that nobody holds any more back to torch's cache, once it has been copied."""
    for address in [address for address, block in _locked.items() if block.storage.expired()]:
        block = _locked.pop(address)
        block.points = [Stream.all[number].mark() for number in block.copied_in]
        _unlocked.append(block)
    for block in [*_unlocked]:
        if all(point.reached() for point in block.points):
            _unlocked.remove(block)
            _cached[block.size] += 1


def fresh_storage(size: int) -> torch.UntypedStorage:
    """Fresh memory of the current stream.

    Torch gives such a storage no deleter, so each allocation looks which ones are dead: an allocation is also what
    makes CUDA's memory another's.
    """
    global _allocated, _peak
    release()
    if (every := setting("PIPETRAIN_EMULATED_FULL", 0)) and next(_allocations) % every == 0:
        device_wide_wait()
    memory = torch.full((size,), GARBAGE, dtype=torch.uint8, device="cpu")
    storage = torch._C._construct_storage_from_data_pointer(memory.data_ptr(), torch.device(NAME, 0), size)
    with _lock:
        blocks[memory.data_ptr()] = Block(memory, current_stream(), StorageWeakRef(storage))
        _allocated += size
        _peak = max(_peak, _allocated)
    return storage


def is_fake(x: Any) -> bool:
    return isinstance(x, torch.Tensor) and x.device.type == NAME


def block_of(x: torch.Tensor) -> Block:
    return blocks[x.untyped_storage().data_ptr()]


def on_host(x: Any) -> Any:
    """The same memory as a tensor of the host; others as they are."""
    if not is_fake(x):
        return x
    if x.numel() == 0:
        return torch.empty_strided(x.size(), x.stride(), dtype=x.dtype, device="cpu")
    memory = block_of(x).bytes.untyped_storage()
    return torch.empty(0, dtype=x.dtype, device="cpu").set_(memory, x.storage_offset(), x.size(), x.stride())


def pinned(x: torch.Tensor, _device: Any = None) -> bool:
    """Stands for Tensor.is_pinned."""
    if is_fake(x) or not x.numel():
        return False
    return _locked_block(x) is not None


def _locked_block(x: torch.Tensor) -> Locked | None:
    storage = x.untyped_storage()
    known = _locked.get(storage.data_ptr())
    return known if known is not None and known.storage == StorageWeakRef(storage) else None


def pin(x: torch.Tensor, _device: Any = None) -> torch.Tensor:
    """Stands for Tensor.pin_memory."""
    return x if pinned(x) else mark_pinned(x.detach().clone())


def mark_pinned(x: torch.Tensor) -> torch.Tensor:
    """Takes a tensor of the host for page-locked memory."""
    if x.numel():
        storage = x.untyped_storage()
        size = _take_locked(storage.nbytes())
        with _lock:
            _locked[storage.data_ptr()] = Locked(size, StorageWeakRef(storage))
    return x


def _take_locked(size: int) -> int:
    """Rounds the size of a block up, and waits for the whole device if torch's allocator has no such block."""
    size = 1 << (size - 1).bit_length()
    release()
    with _lock:
        cached = _cached[size] > 0 and not setting("PIPETRAIN_EMULATED_LOCKING", 0)
        if cached:
            _cached[size] -= 1
    if not cached:
        device_wide_wait()
    return size


def number_in_locked_memory(size: int) -> None:
    """A number of so many bytes comes to the host, in page-locked memory that is free again at once."""
    size = _take_locked(size)
    with _lock:
        _cached[size] += 1


def copied_in(x: torch.Tensor, stream: Stream) -> None:
    """Page-locked memory of the host is let go of once the stream has copied it."""
    if (block := _locked_block(x)) is not None:
        block.copied_in.add(stream.stream_id)


def storage_clone(storage: torch.UntypedStorage) -> torch.UntypedStorage:
    """Stands for UntypedStorage.clone, by which tensors are deep-copied: torch's would ask for an allocator in C++."""
    if storage.device.type != NAME:
        return _torch_clone(storage)
    copy, memory = fresh_storage(storage.nbytes()), blocks[storage.data_ptr()].bytes
    current_stream().put(partial(blocks[copy.data_ptr()].bytes.copy_, memory))
    return copy


def reset_peak(_device: Any = None) -> None:
    global _peak
    release()
    _peak = _allocated
