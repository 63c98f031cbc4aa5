"""A GPU for a CPU build of torch, made in Python alone: the device `fakegpu`, whose operations are carried out later.

`install()` makes it in this process, once. Its memory is the host's and its kernels are the CPU's, so that results have
the CPU's bits. What it has of a GPU are the rules that programs break without noticing on a CPU:

- Operations are queued in streams, each carried out in order by a thread of its own. Which stream is current is a state
  of the host's thread. The first operation that fails makes the whole device fail; the host hears of it when it waits.
- Memory belongs to the stream that was current when it was allocated; fresh memory is garbage. Once nobody holds it, it
  is filled with garbage in the order of its own stream, and waits for no other one but those of `record_stream`.
- The host waits only where CUDA's would: for values, for shapes that depend on values, for copies that are not
  `non_blocking` or whose host memory is not page-locked. `waits` counts each by kind and line of pipetrain's.
- Page-locked memory is read and written late by copies with `non_blocking`, and is garbage until it is written.
- `device_wide_wait` stands for cudaFree and the like: it waits for all streams and all operations of NCCL's.

Who is stuck on the host for STRICT_NCCL_SECONDS (PIPETRAIN_EMULATED_PATIENCE goes before it; inf: for ever) says at
which line, and ends with exit code 99. Other variables of the environment:
PIPETRAIN_EMULATED_MEMORY: bytes of the device. PIPETRAIN_EMULATED_FULL=n: every n-th allocation waits for the whole
device, as torch's allocator does when it has to release memory. PIPETRAIN_EMULATED_SHARED=1: all processes have the
same GPU. PIPETRAIN_EMULATOR_LOG: the folder that `dump` writes to.
"""

from __future__ import annotations

# ruff: noqa: FBT001, FBT002 (functions stand for torch's, with its arguments)
import contextlib
import itertools
import json
import os
import queue
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn, Protocol

import torch
from torch._decomp import decompositions
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

NAME = "fakegpu"
GARBAGE = 0xA5
EXIT_CODE = 99
_PRIVATE_USE_1 = 20  # of c10::DeviceType

waits: Counter[tuple[str, str]] = Counter()
"""How often the host waited, by (kind, line); kinds: implicit, pageable, event, stream, device, nccl."""
watched = [str(Path(find_spec("pipetrain").origin).parent) + "/"]  # type: ignore[union-attr, arg-type]
"""The folders whose lines count as the product's; tests may add theirs."""


def setting(name: str, otherwise: float) -> float:
    """A number of the environment, which tests may set at any time."""
    return float(os.environ.get(name) or otherwise)


def patience() -> float:
    """Seconds that a host may be stuck."""
    return setting("PIPETRAIN_EMULATED_PATIENCE", setting("STRICT_NCCL_SECONDS", 20))


def memory_size() -> int:
    """Bytes of the device."""
    return int(setting("PIPETRAIN_EMULATED_MEMORY", 16 * 2**30))


class Awaited(Protocol):
    def reached(self) -> bool: ...

    def wait(self, timeout: float | None) -> bool: ...


posted: dict[int, tuple[str, Awaited]] = {}
"""What has been given to NCCL and is not complete: in words, and its end."""
_failures: list[BaseException] = []
_here = threading.local()
_lock = threading.RLock()


# -- the host's waits ------------------------------------------------------------------------------------------------


def line() -> str:
    """The innermost line of the product's that got here; of the main thread where this one, autograd's, has none."""
    main = threading.main_thread().ident or 0
    # kept in a variable, the mapping of all frames would hold this one, and the tensors of all callers, for long
    others = [] if threading.get_ident() == main else [sys._current_frames()[main]]
    for innermost in (sys._getframe(1), *others):
        frame = innermost
        while frame is not None:
            file = frame.f_code.co_filename
            for folder in watched:
                if file.startswith(folder) and not file.endswith("/device_queue.py"):  # which waits for its callers
                    return f"{file.removeprefix(str(Path(folder).parent) + '/')}:{frame.f_lineno}"
            frame = frame.f_back
    return "?"


def give_up(what: str) -> NoReturn:
    """Ends the process: an exception could be taken for a lost neighbor."""
    operations = "".join(f"\n    posted: {words}" for words, _ in [*posted.values()])
    _log_error(f"{what}{operations}\n    at {line()}")
    dump()
    os._exit(EXIT_CODE)


def _log_error(what: str) -> None:
    """Says on stderr, and in the folder that PIPETRAIN_EMULATOR_LOG names, what went wrong first."""
    text = f"EMULATED GPU: process {_rank()}: {what}"
    if folder := os.environ.get("PIPETRAIN_EMULATOR_LOG"):
        Path(folder).mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError), Path(folder, f"{os.getpid()}.error").open("x") as file:
            file.write(text)
    print(text, file=sys.stderr, flush=True)


def host_wait(until: Awaited, kind: str, what: str) -> None:
    """Blocks the host, and counts that."""
    waits[kind, line()] += 1
    blocked(until, what)


def blocked(until: Awaited, what: str) -> None:
    """Blocks the host without counting it."""
    if not until.wait(None if patience() == float("inf") else patience()):
        give_up(f"stuck on the host: {what}")
    if _failures:
        raise torch.AcceleratorError(f"emulated GPU: {_failures[0]}") from _failures[0]


def failed(error: BaseException) -> None:
    """From here on all that waits for the device fails, as after an error of CUDA's."""
    _log_error(f"{type(error).__name__}: {error}")
    _failures.append(error)


def device_wide_wait(*_device: Any) -> None:
    """Waits for the whole device, as cudaDeviceSynchronize, cudaFree and the loading of a kernel do."""
    waits["device", line()] += 1
    for stream in [*Stream.all.values()]:
        blocked(stream.mark(), "a wait for the whole device, behind a stream")
    for what, end in [*posted.values()]:
        blocked(end, f"a wait for the whole device, behind {what}")


def dump() -> None:
    """Writes the waits as JSON lines into the folder that PIPETRAIN_EMULATOR_LOG names, if it does."""
    if folder := os.environ.get("PIPETRAIN_EMULATOR_LOG"):
        rows = [{"rank": _rank(), "kind": k, "line": at, "count": n} for (k, at), n in [*waits.items()]]
        Path(folder).mkdir(parents=True, exist_ok=True)
        Path(folder, f"{os.getpid()}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def logged_waits(folder: Path, *kinds: str) -> Counter[str]:
    """How often the hosts of all processes waited at each line; only the implicit waits unless told otherwise."""
    found: Counter[str] = Counter()
    for row in (json.loads(text) for file in folder.glob("*.jsonl") for text in file.read_text().splitlines()):
        if row["kind"] in (kinds or ("implicit",)):
            found[row["line"]] += row["count"]
    return found


def logged_errors(folder: Path) -> str:
    """What went wrong first in each process."""
    return "\n".join(file.read_text() for file in folder.glob("*.error"))


# -- streams and events ----------------------------------------------------------------------------------------------


class Lane:
    """A queue whose items a thread carries out, one after the other."""

    def __init__(self) -> None:
        self._items: queue.SimpleQueue[Callable[[], Any]] = queue.SimpleQueue()
        self._issued = self.completed = 0
        self.changed = threading.Condition()
        # a daemon, as the process must be able to end while an operation spins
        threading.Thread(target=self._work, daemon=True).start()

    def put(self, item: Callable[[], Any]) -> Point:
        with self.changed:
            self._items.put(item)
            self._issued += 1
            return Point(self, self._issued)

    def mark(self) -> Point:
        """The end of all that has been put there."""
        with self.changed:
            return Point(self, self._issued)

    def _work(self) -> None:
        with torch.inference_mode():
            while True:
                item = self._items.get()
                try:
                    if not _failures:
                        item()
                except BaseException as error:
                    failed(error)
                del item  # with all that it holds, before anybody hears that it is complete
                with self.changed:
                    self.completed += 1
                    self.changed.notify_all()


@dataclass(frozen=True)
class Point:
    """A place in a lane."""

    lane: Lane
    number: int

    def reached(self) -> bool:
        return self.lane.completed >= self.number

    def wait(self, timeout: float | None = None) -> bool:
        with self.lane.changed:
            return self.lane.changed.wait_for(self.reached, timeout)


class Stream(torch.Stream):
    """A stream, as of torch.cuda."""

    all: dict[int, Stream] = {}  # noqa: RUF012 (an attribute of all, by number)
    lane: Lane

    def __new__(cls, _device: Any = None, _priority: int = 0) -> Stream:
        number = len(cls.all)
        self = super().__new__(cls, stream_id=number, device_index=0, device_type=_PRIVATE_USE_1)  # type: ignore[call-overload]
        self.lane = Lane()
        cls.all[number] = self
        return self

    def put(self, item: Callable[[], Any]) -> Point:
        return self.lane.put(item)

    def mark(self) -> Point:
        return self.lane.mark()

    def wait_point(self, point: Awaited) -> None:
        """What is put here from now on waits for it; the host does not."""
        self.put(lambda: point.wait(None))

    def synchronize(self) -> None:
        host_wait(self.mark(), "stream", "Stream.synchronize")

    def query(self) -> bool:
        return self.mark().reached()

    def wait_stream(self, stream: Stream) -> None:
        self.wait_point(stream.mark())

    def wait_event(self, event: Event) -> None:
        event.wait(self)

    def record_event(self, event: Event | None = None) -> Event:
        event = event or Event()
        event.record(self)
        return event


class Event:
    """An event, as of torch.cuda; its time is that when its stream reaches it."""

    def __init__(self, enable_timing: bool = False, **_options: Any) -> None:
        self._timed, self._point, self._time = enable_timing, None, [0.0]

    def record(self, stream: Stream | None = None) -> None:
        moment = self._time = [0.0]
        self._point = (stream or current_stream()).put(lambda: moment.__setitem__(0, time.perf_counter()))

    def query(self) -> bool:
        return self._point is None or self._point.reached()

    def synchronize(self) -> None:
        if self._point is not None:
            host_wait(self._point, "event", "Event.synchronize")

    def wait(self, stream: Stream | None = None) -> None:
        if self._point is not None:
            (stream or current_stream()).wait_point(self._point)

    def elapsed_time(self, end: Event) -> float:
        for each in (self, end):
            if not each._timed or each._point is None or not each.query():
                raise RuntimeError("both events must have been made with enable_timing, recorded and reached")
        return 1000 * (end._time[0] - self._time[0])


def current_stream(_device: Any = None) -> Stream:
    return getattr(_here, "stream", None) or Stream.all[0]


def set_stream(stream: Stream) -> None:
    _here.stream = stream


@contextmanager
def entered(stream: Stream | None) -> Iterator[None]:
    before = current_stream()
    set_stream(stream or before)
    try:
        yield
    finally:
        set_stream(before)


# -- memory ----------------------------------------------------------------------------------------------------------


@dataclass
class Block:
    """Memory of the device."""

    bytes: torch.Tensor
    stream: Stream
    storage: StorageWeakRef
    lent_to: set[int] = field(default_factory=set)
    points: list[Point] = field(default_factory=list)


_blocks: dict[int, Block] = {}
_freed: list[Block] = []
_pinned: dict[int, StorageWeakRef] = {}
_allocated, _peak, _allocations = 0, 0, itertools.count(1)


def release() -> None:
    """Fills what nobody holds any more with garbage, in the order of its own stream."""
    global _allocated
    with _lock:
        for address in [address for address, block in _blocks.items() if block.storage.expired()]:
            block = _blocks.pop(address)
            _allocated -= block.bytes.nbytes
            block.points = [Stream.all[number].mark() for number in block.lent_to]
            _freed.append(block)
        # in order: memory that is lent waits here, without holding up its stream
        done = [block for block in _freed if all(point.reached() for point in block.points)]
        _freed[:] = [block for block in _freed if not any(block is each for each in done)]
        for block in done:
            block.stream.put(partial(block.bytes.fill_, GARBAGE))


def fresh_storage(size: int) -> torch.UntypedStorage:
    """Fresh memory of the current stream.

    Torch gives such a storage no deleter, so each allocation looks which ones are dead: an allocation is also what
    makes CUDA's memory another's.
    """
    global _allocated, _peak
    release()
    if (every := setting("PIPETRAIN_EMULATED_FULL", 0)) and next(_allocations) % every == 0:
        device_wide_wait()
    if _allocated + size > memory_size():
        device_wide_wait()
        raise torch.OutOfMemoryError(
            f"emulated GPU: out of memory: {size} bytes beside {_allocated} of {memory_size()}"
        )
    memory = torch.full((size,), GARBAGE, dtype=torch.uint8, device="cpu")
    storage = torch._C._construct_storage_from_data_pointer(memory.data_ptr(), torch.device(NAME, 0), size)
    with _lock:
        _blocks[memory.data_ptr()] = Block(memory, current_stream(), StorageWeakRef(storage))
        _allocated += size
        _peak = max(_peak, _allocated)
    return storage


def is_fake(x: Any) -> bool:
    return isinstance(x, torch.Tensor) and x.device.type == NAME


def block_of(x: torch.Tensor) -> Block:
    return _blocks[x.untyped_storage().data_ptr()]


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
    storage = x.untyped_storage()
    known = _pinned.get(storage.data_ptr())
    return known is not None and known == StorageWeakRef(storage)


def pin(x: torch.Tensor, _device: Any = None) -> torch.Tensor:
    """Stands for Tensor.pin_memory."""
    return x if pinned(x) else mark_pinned(x.detach().clone())


def mark_pinned(x: torch.Tensor) -> torch.Tensor:
    with _lock:
        for address in [address for address, storage in _pinned.items() if storage.expired()]:
            del _pinned[address]
        _pinned[x.untyped_storage().data_ptr()] = StorageWeakRef(x.untyped_storage())
    return x


def _storage_clone(storage: torch.UntypedStorage) -> torch.UntypedStorage:
    """Stands for UntypedStorage.clone, by which tensors are deep-copied: torch's would ask for an allocator in C++."""
    if storage.device.type != NAME:
        return _torch_clone(storage)
    copy, memory = fresh_storage(storage.nbytes()), _blocks[storage.data_ptr()].bytes
    current_stream().put(partial(_blocks[copy.data_ptr()].bytes.copy_, memory))
    return copy


_torch_clone = torch.UntypedStorage.clone


# -- the device's module ---------------------------------------------------------------------------------------------


def _rank() -> int:
    return int(os.environ.get("RANK") or 0)


def _properties(_device: Any = None) -> SimpleNamespace:
    number = 0 if os.environ.get("PIPETRAIN_EMULATED_SHARED") else _rank()
    address = {"pci_domain_id": 0, "pci_bus_id": number, "pci_device_id": 0}
    return SimpleNamespace(name="emulated GPU", uuid=f"GPU-{number:04}", total_memory=memory_size(), **address)


def _reset_peak(_device: Any = None) -> None:
    global _peak
    release()
    _peak = _allocated


MODULE = SimpleNamespace(
    Stream=Stream, Event=Event, stream=entered, current_stream=current_stream, set_stream=set_stream,
    default_stream=lambda _device=None: Stream.all[0], synchronize=device_wide_wait,
    get_device_properties=_properties, get_device_name=lambda _device=None: _properties().name,
    device_count=lambda: 1, current_device=lambda: 0, set_device=lambda _device: None, is_available=lambda: True,
    is_initialized=lambda: True, _is_in_bad_fork=lambda: False,
    memory_allocated=lambda _device=None: _allocated, max_memory_allocated=lambda _device=None: _peak,
    memory_reserved=lambda _device=None: _allocated, max_memory_reserved=lambda _device=None: _peak,
    reset_peak_memory_stats=_reset_peak, empty_cache=release,
    manual_seed_all=lambda _seed: None, manual_seed=lambda _seed: None,  # torch.manual_seed seeds the CPU's beside it
    default_generators=(torch.default_generator,), get_rng_state=lambda _device=None: torch.get_rng_state(),
    set_rng_state=lambda state, _device=None: torch.set_rng_state(state),
    get_amp_supported_dtype=lambda: [torch.float16, torch.bfloat16, torch.float32],
)  # fmt: skip
"""What torch.get_device_module gives, as of torch.cuda."""


# -- operations ------------------------------------------------------------------------------------------------------

aten = torch.ops.aten
_CPU = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
_libraries: list[torch.library.Library] = []
_REHEARSED = {"aten::mkldnn_rnn_layer", "aten::mkldnn_rnn_layer_backward", "aten::native_batch_norm"}
_RENAMED = {"convolution_overrideable": "convolution", "convolution_backward_overrideable": "convolution_backward"}


def carry_out(op: Any, *args: Any, **kwargs: Any) -> Any:
    """Every operation with a tensor of the device comes here, below autograd."""
    name, tags = op._schema.name.removeprefix("aten::"), op.tags
    if name in _SPECIAL:
        return _SPECIAL[name](*args, **kwargs)
    returns = op._schema.returns
    if (
        name == "set_"
        or torch.Tag.inplace_view in tags
        or any(r.alias_info and not r.alias_info.is_write for r in returns)
    ):
        return op.redispatch(_CPU, *args, **kwargs)  # which looks at shapes alone
    if name in ("empty", "empty_strided"):
        x = op(*args, **_moved(kwargs, "meta"))
        return fresh(x.size(), x.stride(), x.dtype)
    _check_devices(name, args, kwargs)
    if name in _RENAMED:
        # the backward takes the sizes of the bias, which the other does not ask for
        args = (*args[:3], [args[0].shape[1]], *args[3:]) if "backward" in name else args
        op = getattr(aten, _RENAMED[name]).default
    if torch.Tag.nondeterministic_seeded in tags and (drawn := _drawn(op, args, kwargs)) is not None:
        return drawn
    if _needs_values(name, tags, args):
        return _carried_out_now(op, args, kwargs)
    return _queued(op, args, kwargs)


def _queued(op: Any, args: Any, kwargs: Any) -> Any:
    """The tensors that the operation will have written when the current stream gets there."""
    places = _results(op, args, kwargs)
    here, named = _tree(on_host, args), _tree(on_host, _moved(kwargs, "cpu"))
    written = [on_host(place) if new else None for place, new in places]
    learns = torch.is_grad_enabled()  # some kernels then write more

    def run() -> None:
        try:
            with torch.set_grad_enabled(learns):
                found = op(*here, **named)
        except Exception as error:
            raise RuntimeError(f"{op}: {error}") from error
        found = found if isinstance(found, (tuple, list)) and len(op._schema.returns) != 0 else (found,)
        flat = [*_tensors(found)] if any(isinstance(f, (list, tuple)) for f in found) else found
        for place, value in zip(written, flat, strict=False):
            if isinstance(place, torch.Tensor) and not (value is None and place.numel() == 0):  # which nobody asked for
                if value is None or value.size() != place.size():
                    raise RuntimeError(
                        f"{op}: foreseen {place.size()}, found {value if value is None else value.size()}"
                    )
                place.copy_(value)

    current_stream().put(run)
    return _shaped(op, [place for place, _ in places])


def _results(op: Any, args: Any, kwargs: Any) -> list[tuple[Any, bool]]:
    """What the operation returns, and whether it is new memory; its kernel for shapes alone says of which shape."""
    arguments = op._schema.arguments
    given = {a.name: kwargs.get(a.name, args[i] if i < len(args) else None) for i, a in enumerate(arguments)}
    changed = [a for a in arguments if a.alias_info and a.alias_info.is_write]
    outs = [given[a.name] for a in changed if a.is_out]
    returns = op._schema.returns
    sized = op._schema.name == "aten::index" or not any(isinstance(o, torch.Tensor) and o.numel() == 0 for o in outs)
    if sized and all(r.alias_info for r in returns):
        return [(given[a.name], False) for a in changed][: len(returns)]
    # some kernels for shapes alone say otherwise than the CPU's, which then tells by zeros
    device = "cpu" if op._schema.name in _REHEARSED else "meta"
    shapes, named = (_tree(partial(_shape, device=device), each) for each in (args, _moved(kwargs, device)))
    found = op(*shapes, **named)
    if all(r.alias_info for r in returns):
        for out, shape in zip(outs, [named[a.name] for a in changed if a.is_out], strict=True):
            if out.size() != shape.size():
                _resize(out, shape.size(), shape.stride())
        return [(out, False) for out in outs]
    found = found if isinstance(found, (tuple, list)) else [found]
    own = {next(iter(a.alias_info.before_set)): given[a.name] for a in changed}
    if len(found) != len(returns):  # a list of tensors
        return [(fresh(f.size(), f.stride(), f.dtype), True) for f in found]
    return [
        (own[next(iter(r.alias_info.before_set))], False) if r.alias_info
        else (fresh(f.size(), f.stride(), f.dtype) if isinstance(f, torch.Tensor) else f, True)
        for r, f in zip(returns, found, strict=True)
    ]  # fmt: skip


def _shaped(op: Any, places: list[Any]) -> Any:
    returns = op._schema.returns
    if len(returns) == 1 and not str(returns[0].type).startswith("List"):
        return places[0]
    return None if not returns else places if len(returns) == 1 else tuple(places)


def _carried_out_now(op: Any, args: Any, kwargs: Any) -> Any:
    """The host waits, as it needs values."""
    host_wait(current_stream().mark(), "implicit", str(op))
    found = op(*_tree(on_host, args), **_tree(on_host, _moved(kwargs, "cpu")))
    written = [a for a in op._schema.arguments if a.alias_info and a.alias_info.is_write]
    if written:
        return args[0] if not written[0].is_out else kwargs[written[0].name]
    return _tree(_placed, found)


def _needs_values(name: str, tags: Any, args: Any) -> bool:
    if name in ("index", "index_put", "index_put_", "_index_put_impl_"):
        indices = [each for each in args[1] if each is not None]
        masks = name != "index" and any(each.dtype in (torch.bool, torch.uint8) for each in indices)
        return masks or not all(map(is_fake, indices))  # before an `index` with a mask there was a `nonzero`
    return bool({torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output} & set(tags))


def _drawn(op: Any, args: Any, kwargs: Any) -> Any:
    """Random numbers of the CPU's generator, in the order of the calls; the device does not wait, nor does the host.

    None where they depend on no generator.
    """
    tensors = [*_tensors((args, kwargs))]
    fakes = [x for x in tensors if is_fake(x)]
    if len(fakes) == 1 and any(a.alias_info and a.alias_info.is_write for a in op._schema.arguments):
        if fakes[0].numel() == 0:
            _results(op, args, kwargs)
        target = fakes[0]
        scratch = torch.empty_strided(target.size(), target.stride(), dtype=target.dtype, device="cpu")
        draw = lambda x: scratch if x is target else x  # noqa: E731
        op(*_tree(draw, args), **_tree(draw, _moved(kwargs, "cpu")))
        current_stream().put(partial(on_host(target).copy_, scratch))
        return target
    if not fakes:
        return _tree(_placed, op(*args, **_moved(kwargs, "cpu")))
    # how many are drawn may depend on values: the emulator waits, a GPU would not
    blocked(current_stream().mark(), "random numbers")
    found = op(*_tree(on_host, args), **_tree(on_host, _moved(kwargs, "cpu")))
    return fakes[0] if op._schema.returns[0].alias_info else _tree(_placed, found)


def _placed(x: torch.Tensor) -> torch.Tensor:
    """The same values in memory of the device, from where the host has them: kernels make such, no copies."""
    place = fresh(x.size(), x.stride(), x.dtype)
    current_stream().put(partial(on_host(place).copy_, x))
    return place


def fresh(size: Any, stride: Any, dtype: torch.dtype) -> torch.Tensor:
    """A tensor of garbage."""
    x = torch._C._acc.create_empty_tensor([0], dtype)
    if not all(size):
        return aten.as_strided.default.redispatch(_CPU, x, size, stride, 0)
    storage = fresh_storage((1 + sum((n - 1) * s for n, s in zip(size, stride, strict=True))) * dtype.itemsize)
    return aten.set_.source_Storage_storage_offset.redispatch(_CPU, x, storage, 0, size, stride)


def _resize(x: torch.Tensor, size: Any, stride: Any = None, *, memory_format: Any = None) -> torch.Tensor:
    shape = torch.empty(size, device="meta", memory_format=memory_format or torch.contiguous_format)
    made = fresh(size, stride or shape.stride(), x.dtype)
    if x.numel() and made.numel():
        kept = min(block_of(x).bytes.nbytes, block_of(made).bytes.nbytes)
        current_stream().put(partial(block_of(made).bytes[:kept].copy_, block_of(x).bytes[:kept]))
    return aten.set_.source_Storage_storage_offset.redispatch(_CPU, x, made.untyped_storage(), 0, size, made.stride())


def _copy(target: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    to_device, from_device = is_fake(target), is_fake(source)
    other = source if to_device else target
    there, here = on_host(target if to_device else target.data), on_host(source)
    late = non_blocking and pinned(other)
    if late and not to_device and target.is_contiguous():
        target.data.reshape(-1).view(torch.uint8).fill_(GARBAGE)  # until the device gets there
    end = current_stream().put(partial(there.copy_, here))
    if not (to_device and from_device) and not late:
        host_wait(end, "pageable" if non_blocking and to_device else "implicit", "a copy between host and device")
    return target


def _to_copy(x: torch.Tensor, **options: Any) -> torch.Tensor:
    """`to`; torch's own asks for page-locked memory in C++ if the copy is not to block."""
    device = options.get("device")
    if device is None or torch.device(device).type != "cpu" or not options.get("non_blocking"):
        return aten._to_copy.default.redispatch(_CPU, x, **options)
    dtype = options.get("dtype") or x.dtype
    return _copy(mark_pinned(torch.empty_like(x, device="cpu", dtype=dtype)), x, non_blocking=True)


def _record_stream(x: torch.Tensor, stream: torch.Stream) -> None:
    if x.numel():
        block_of(x).lent_to.add(stream.stream_id)


def _dropout(x: torch.Tensor, p: float, train: bool | None) -> tuple[torch.Tensor, torch.Tensor]:
    """The CPU's, bit for bit, which has no kernel of this kind."""
    if train is False or p == 0:
        return x.clone(), torch.ones_like(x, dtype=torch.bool)
    noise = torch.empty_strided(x.size(), x.stride(), dtype=x.dtype, device="cpu").bernoulli_(1 - p)
    kept = _placed(noise.bool())
    y = fresh(x.size(), x.stride(), x.dtype)
    there, here = on_host(y), on_host(x)
    current_stream().put(lambda: there.copy_(here * noise.div_(1 - p)))
    return y, kept


def _dropout_backward(gradient: torch.Tensor, mask: torch.Tensor, scale: float) -> torch.Tensor:
    return gradient * mask.to(gradient.dtype).div_(1 / scale if scale else 1)


def _lstm(
    x: torch.Tensor, hidden: list[torch.Tensor], params: list[torch.Tensor], has_biases: bool, num_layers: int,
    dropout: float, train: bool, bidirectional: bool, batch_first: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    """Made of the kernels that the CPU's is made of, as torch picks them for no other device."""

    def layer(x: torch.Tensor, state: Any, own: list[torch.Tensor], has_biases: bool, reverse: bool = False) -> Any:
        biases = own[2:4] if has_biases else [own[0].new_zeros(len(own[0])) for _ in range(2)]
        states = [each.unsqueeze(0).contiguous() for each in state]
        options = (reverse, [], 2, states[0].shape[2], 1, has_biases, False, False, train)  # 2: of an LSTM
        y, *states, _ = aten.mkldnn_rnn_layer.default(x.contiguous(), *own[:2], *biases, *states, *options)
        return y, tuple(each.squeeze(0) for each in states)

    projected = hidden[0].shape[2] != hidden[1].shape[2]
    fast = torch._C._get_mkldnn_enabled() and x.dtype in (torch.float32, torch.bfloat16, torch.float16)
    y, states = decompositions._rnn_helper(
        x, [*zip(*hidden, strict=True)], decompositions.gather_params(params, has_biases, projected), has_biases,
        num_layers, dropout, train, bidirectional, batch_first,
        layer if fast and not projected else decompositions.one_layer_lstm,
    )  # fmt: skip
    return y, *(torch.stack(each) for each in zip(*states, strict=True))


_SPECIAL: dict[str, Callable[..., Any]] = {
    "copy_": _copy,
    "_copy_from": lambda source, target, non_blocking=False: _copy(target, source, non_blocking),
    "_to_copy": _to_copy,
    "resize_": _resize,
    "record_stream": _record_stream,
    "native_dropout": _dropout,
    "native_dropout_backward": _dropout_backward,
    "_fused_sdp_choice": lambda *_args, **_options: 0,  # attention by the operations that it is made of
    "_local_scalar_dense": lambda x: (host_wait(current_stream().mark(), "implicit", "item"), on_host(x).item())[1],
}


def _check_devices(name: str, args: Any, kwargs: Any) -> None:
    if not name.startswith(("index", "_index")):  # host tensors may be indices
        for x in _tensors((args, kwargs)):
            if not is_fake(x) and x.dim():
                raise RuntimeError(
                    f"{name}: expected all tensors to be on the same device, but found {NAME}:0 and {x.device}"
                )


def _moved(options: dict[str, Any], device: str) -> dict[str, Any]:
    """The same options for a device that has the kernel."""
    moved = {k: torch.device(device) if k == "device" and v is not None else v for k, v in options.items()}
    return {k: v for k, v in moved.items() if k != "pin_memory"}


def _shape(x: torch.Tensor, device: str) -> torch.Tensor:
    if not is_fake(x):
        return x
    made = torch.empty_strided(x.size(), x.stride(), dtype=x.dtype, device=device)
    return made if device == "meta" else made.zero_()


def _tree(change: Callable[[torch.Tensor], Any], tree: Any) -> Any:
    """The same with each tensor changed; torch's own function for it takes ten times as long."""
    if isinstance(tree, torch.Tensor):
        return change(tree)
    if isinstance(tree, (list, tuple)):
        return type(tree)(_tree(change, each) for each in tree) if type(tree) in (list, tuple) else tree
    return {k: _tree(change, v) for k, v in tree.items()} if isinstance(tree, dict) else tree


def _tensors(tree: Any) -> Iterator[torch.Tensor]:
    if isinstance(tree, torch.Tensor):
        yield tree
    elif isinstance(tree, (list, tuple, dict)):
        for each in tree.values() if isinstance(tree, dict) else tree:
            yield from _tensors(each)


# -- mixed precision -------------------------------------------------------------------------------------------------

_HALF = (
    "conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d bmm mm baddbmm addmm addbmm linear matmul "
    "scaled_dot_product_attention mkldnn_rnn_layer"
)
_FULL_PRECISION = (
    "mse_loss l1_loss smooth_l1_loss huber_loss binary_cross_entropy binary_cross_entropy_with_logits kl_div nll_loss "
    "cosine_embedding_loss hinge_embedding_loss margin_ranking_loss"
)
"""What autocast of the CPU has in half and in full precision, as far as models here use it."""


def _cast(op: Any, half: bool, *args: Any, **kwargs: Any) -> Any:
    dtype = torch.get_autocast_dtype(NAME) if half else torch.float32
    cast = lambda x: x.to(dtype) if is_fake(x) and x.is_floating_point() and x.dtype != torch.float64 else x  # noqa: E731
    with torch.autocast(NAME, enabled=False):
        return op(*_tree(cast, args), **_tree(cast, kwargs))


# -- installation ----------------------------------------------------------------------------------------------------


def install() -> None:
    """Makes the device in this process; once."""
    if _libraries:
        return
    Stream()
    _setup_privateuseone_for_python_backend(NAME, backend_module=MODULE)
    _libraries.extend(torch.library.Library(*each) for each in (("_", "IMPL"), ("aten", "IMPL")))
    _libraries[0].fallback(carry_out, "PrivateUse1")
    _libraries[0].fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
    # what has kernels of torch's for any device, which raise or ask for what is not there
    for name in (*_RENAMED, "_to_copy", "native_dropout", "native_layer_norm"):
        _libraries[1].impl(name, partial(carry_out, getattr(aten, name).default), "PrivateUse1")
    recurrent = {
        "lstm.input": _lstm,
        "lstm.data": decompositions.lstm_data_impl,
        "gru.input": decompositions.gru_impl,
        "gru.data": decompositions.gru_impl_data,
    }
    for name, function in recurrent.items():
        for key in ("AutogradPrivateUse1", "PrivateUse1"):  # the latter under inference_mode
            _libraries[1].impl(name, function, key)
    for names, half in ((_HALF, True), (_FULL_PRECISION, False)):
        for name in names.split():
            packet = getattr(aten, name)
            for overload in packet.overloads():
                if not overload.endswith("out") and "dtype" not in overload:
                    op = getattr(packet, overload)
                    _libraries[1].impl(
                        op.name().removeprefix("aten::"), partial(_cast, op, half), "AutocastPrivateUse1"
                    )
    torch.Tensor.is_pinned, torch.Tensor.pin_memory = pinned, pin  # type: ignore[method-assign, assignment]
    torch.UntypedStorage.clone = _storage_clone  # type: ignore[method-assign]
    # a Parameter that is moved to CUDA stays the same object, by which layers share it; here torch would replace it
    torch.__future__.set_swap_module_params_on_conversion(True)
