"""NCCL's rules between processes of a CPU: a process group as late, as serial and as unforgiving as NCCL's may be.

`install()` in each process, with the device of `support.fake_gpu`; from then on `new_group(backend="nccl")` makes one.

- A communicator is made on the host, by its first call at all ends. Point to point, each direction of a pair connects
  on the host, in its first send and receive; `all_to_all` is point to point, and connects even after an `all_reduce`.
- An operation begins behind what the current stream has queued at the call. Those of a communicator are carried out
  one by one, in order, each only with its like at the other ends: kinds and sizes must match, tags do not count.
- Sent memory is read late; if it has changed by then, that is an error. Received memory is garbage once the operation
  begins, and is written late. An operation holds its memory until it is complete or `wait` was called.
- `Work.wait` has the current stream wait, not the host; for tensors of `cpu`, which have no stream, the host.
- An operation that has begun takes thread blocks of the device (max_ctas of its group) until its other end has come.
  More than PIPETRAIN_EMULATED_SMS (132) at once are an error, as computation would find no multiprocessor.
- The death of a peer is never noticed: its operations spin for ever, as NCCL's do within a machine.

Who breaks a rule says so and ends with exit code 99, as does who is stuck on the host (fake_gpu.patience). Operations
are late by up to STRICT_NCCL_LATE_MS (3) milliseconds, twice.
"""

from __future__ import annotations

import itertools
import os
import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Client, Connection, Listener
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from support import fake_gpu
from support.fake_gpu import (
    GARBAGE,
    Lane,
    blocked,
    current_stream,
    give_up,
    is_fake,
    line,
    on_host,
    patience,
    posted,
    setting,
)
from torch import Tensor
from torch.distributed import distributed_c10d

NAME = "strict_nccl"
_USUAL_CTAS = 32  # what NCCL may take over NVLink where nobody says otherwise
_POLL = 0.002

groups: list[StrictGroup] = []
"""All that were made in this process; `max_ctas` says what each may take."""
_numbers = itertools.count()
_draw = random.Random(os.getpid())


class _ThreadBlocks:
    """Those that operations have taken, now and at most."""

    def __init__(self) -> None:
        self.taken = self.most = 0
        self._lock = threading.Lock()

    def take(self, count: int) -> None:
        with self._lock:
            self.taken += count
            self.most = max(self.most, self.taken)
            if self.taken > (limit := int(setting("PIPETRAIN_EMULATED_SMS", 132))):
                give_up(f"operations of NCCL's occupy {self.taken} thread blocks of {limit} multiprocessors")

    def free(self, count: int) -> None:
        with self._lock:
            self.taken -= count


thread_blocks = _ThreadBlocks()


class Operation(dist.Work):
    """One operation of a communicator."""

    def __init__(self, what: str, lane: Lane, ctas: int, memory: Sequence[Tensor], carry: Callable[[], None]) -> None:
        super().__init__()
        self._what, self._on_device = what, any(is_fake(each) for each in memory)
        self._held: list[Tensor] = [*memory]
        begins, number = current_stream().mark(), next(_numbers)

        def run() -> None:
            begins.wait()
            thread_blocks.take(ctas)
            late()
            carry()
            thread_blocks.free(ctas)
            posted.pop(number, None)
            self._held.clear()

        with lane.changed:  # so that the operation cannot be complete before it is posted
            self._end = lane.put(run)
            posted[number] = f"{what} at {line()}", self._end

    def is_completed(self) -> bool:
        return self._end.reached()

    def is_success(self) -> bool:
        return self.is_completed()

    def wait(self, _timeout: Any = None) -> bool:
        if self._on_device:
            current_stream().wait_point(self._end)
        else:
            fake_gpu.host_wait(self._end, "nccl", self._what)
        self._held.clear()
        return True


class _AwaitedOnHost(Operation):
    """A barrier."""

    def wait(self, _timeout: Any = None) -> bool:
        super().wait()
        blocked(current_stream().mark(), self._what)
        return True


class Communicator:
    """The connections between some ranks of a group, and the queue of their operations."""

    def __init__(self, wires: Mapping[int, Connection]) -> None:
        self.lane, self._wires = Lane(), wires

    def exchange(
        self, rank: int, kind: tuple[str, str], sent: Callable[[int], bytes], sizes: Sequence[tuple[int, int]]
    ) -> dict[int, bytes]:
        """What the others send.

        Args:
            rank: of this process.
            kind: of the operation, here and at the other end.
            sent: what goes to a peer, read once all have come.
            sizes: bytes to and from each rank.
        """
        found: dict[int, bytes] = {}
        try:
            for peer, wire in self._wires.items():
                expected = repr((kind[::-1], sizes[peer][::-1]))
                there = _swapped(wire, repr((kind, sizes[peer])).encode(), first=rank < peer).decode()
                if there != expected:
                    give_up(f"operations do not match: here {(kind, sizes[peer])}, at rank {peer} {there}")
            late()
            # pairs go in one order everywhere, so that none waits in a ring
            found = {peer: _swapped(wire, sent(peer), first=rank < peer) for peer, wire in self._wires.items()}
        except (EOFError, OSError):
            threading.Event().wait()  # the peer is gone, and NCCL does not notice
        late()
        return found


def late() -> None:
    """Passes a while."""
    time.sleep(_draw.random() * setting("STRICT_NCCL_LATE_MS", 3) / 1000)


def _swapped(wire: Connection, sent: bytes, *, first: bool) -> bytes:
    """What the other end sends; one of them sends first."""
    if first:
        wire.send_bytes(sent)
    found = wire.recv_bytes()
    if not first:
        wire.send_bytes(sent)
    return found


class StrictGroup(dist.ProcessGroup):
    """A process group with NCCL's rules."""

    def __init__(self, made: Any, options: Any) -> None:
        super().__init__(made.group_rank, made.group_size)
        self.me, self.count, self._store = made.group_rank, made.group_size, made.store
        self.max_ctas = options.config.max_ctas if options is not None else _USUAL_CTAS
        self._communicators: dict[str, Communicator] = {}
        self._met: set[str] = set()
        groups.append(self)

    def getBackendName(self) -> str:  # noqa: N802
        return NAME

    def shutdown(self) -> None:
        """Nothing: what spins goes on."""

    def _meet(self, what: str, mine: object, theirs: Sequence[object]) -> None:
        """Blocks the host until the other ends have made their first such call."""
        if what in self._met:
            return
        self._met.add(what)
        self._store.set(f"{what}/{mine}", "1")
        end = time.monotonic() + patience()
        while not self._store.check([f"{what}/{each}" for each in theirs]):
            if time.monotonic() > end:
                give_up(f"stuck on the host: {what}: the other end makes no call")
            time.sleep(_POLL)

    def _communicator(self, ranks: Sequence[int]) -> Communicator:
        name = "communicator of " + (" and ".join(map(str, ranks)) if len(ranks) == 2 else "all")
        self._meet(f"making the {name}", self.me, ranks)
        if name not in self._communicators:
            self._communicators[name] = Communicator(self._wires(name, [rank for rank in ranks if rank != self.me]))
        return self._communicators[name]

    def _wires(self, name: str, peers: Sequence[int]) -> dict[int, Connection]:
        listeners = {}
        for peer in (peer for peer in peers if peer > self.me):
            address = f"\0{os.getpid()}-{next(_numbers)}-emulated-nccl"  # a name of the kernel's, which no file has
            listeners[peer] = Listener(address)
            self._store.set(f"{name}/{self.me}-{peer}", address)
        wires = {}
        for peer in peers:
            if peer in listeners:
                wires[peer] = listeners[peer].accept()
                listeners[peer].close()
            else:
                wires[peer] = Client(self._store.get(f"{name}/{peer}-{self.me}").decode())
        return wires

    # -- point to point ----------------------------------------------------------------------------------------------

    def send(self, tensors: list[Tensor], peer: int, _tag: int = 0) -> Operation:
        return self._point(tensors[0], peer, ("send", "receive"))

    def recv(self, tensors: list[Tensor], peer: int, _tag: int = 0) -> Operation:
        return self._point(tensors[0], peer, ("receive", "send"))

    def _point(self, tensor: Tensor, peer: int, kinds: tuple[str, str]) -> Operation:
        memory, sends = bytes_of(tensor), kinds[0] == "send"
        communicator = self._communicator(sorted((self.me, peer)))
        way = f"{self.me} -> {peer}" if sends else f"{peer} -> {self.me}"
        self._meet(f"connecting {way}", kinds[0], [kinds[1]])
        kind = (f"{kinds[0]} {tensor.dtype}", f"{kinds[1]} {tensor.dtype}")
        size = memory.numel()
        sizes = {peer: (size, 0) if sends else (0, size)}
        what = f"{kinds[0]} of {size} bytes {way}"

        def carry() -> None:
            sent = SentMemory(memory, what) if sends else None
            if not sends:
                memory.fill_(GARBAGE)
            found = communicator.exchange(self.me, kind, lambda _peer: sent.read() if sent else b"", sizes)
            if not sends:
                write(memory, found[peer])

        return Operation(what, communicator.lane, self.max_ctas, [tensor], carry)

    # -- collectives -------------------------------------------------------------------------------------------------

    def allreduce(self, tensors: list[Tensor], opts: Any = None) -> Operation:
        op, memory = _reduction(opts), on_host(tensors[0]).detach()

        def put(found: Sequence[bytes]) -> None:
            parts = [torch.frombuffer(bytearray(each), dtype=memory.dtype) for each in found]
            memory.copy_(op(torch.stack(parts)).view(memory.shape))

        return self._collective("all_reduce", tensors[0], None, put)

    def allgather(self, outputs: list[list[Tensor]], tensors: list[Tensor], opts: Any = None) -> Operation:  # noqa: ARG002
        places = [bytes_of(each) for each in outputs[0]]

        def put(found: Sequence[bytes]) -> None:
            for place, each in zip(places, found, strict=True):
                write(place, each)

        return self._collective("all_gather", tensors[0], outputs[0], put)

    def _allgather_base(self, output: Tensor, tensor: Tensor, opts: Any = None) -> Operation:
        return self.allgather([list(output.view(self.count, -1).unbind())], [tensor], opts)

    def broadcast(self, tensors: list[Tensor], opts: Any = None) -> Operation:
        root, memory = opts.rootRank if opts is not None else 0, bytes_of(tensors[0])
        return self._collective(f"broadcast from {root}", tensors[0], None, lambda found: write(memory, found[root]))

    def barrier(self, opts: Any = None) -> Operation:  # noqa: ARG002
        return self._collective(
            "barrier", torch.zeros(1, device=fake_gpu.NAME), None, lambda _found: None, _AwaitedOnHost
        )

    def _collective(
        self,
        kind: str,
        tensor: Tensor,
        outputs: Sequence[Tensor] | None,
        put: Callable[[Sequence[bytes]], None],
        work: type[Operation] = Operation,
    ) -> Operation:
        """Every rank gets what all have, in the order of ranks; results go over the memory unless there are outputs."""
        communicator, memory = self._communicator(range(self.count)), bytes_of(tensor)
        kind, sizes = f"{kind} {tensor.dtype}", [(memory.numel(),) * 2] * self.count
        places = [bytes_of(each) for each in outputs or ()]

        def carry() -> None:
            sent = SentMemory(memory, kind)
            for place in places:
                place.fill_(GARBAGE)
            found = communicator.exchange(self.me, (kind, kind), lambda _peer: sent.read(), sizes)
            found[self.me] = sent.read()
            put([found[rank] for rank in range(self.count)])

        return work(kind, communicator.lane, self.max_ctas, [tensor, *(outputs or ())], carry)

    def alltoall_base(
        self,
        output: Tensor,
        given: Tensor,
        output_splits: list[int],
        input_splits: list[int],
        opts: Any = None,  # noqa: ARG002
    ) -> Operation:
        communicator = self._communicator(range(self.count))
        self._meet("connecting all_to_all", self.me, range(self.count))
        parts, places = (
            [*map(bytes_of, _split(each, lengths, self.count))]
            for each, lengths in ((given, input_splits), (output, output_splits))
        )
        kind = f"all_to_all {given.dtype}"
        sizes = [(part.numel(), place.numel()) for part, place in zip(parts, places, strict=True)]

        def carry() -> None:
            sent = [SentMemory(part, kind) for part in parts]
            for place in places:
                place.fill_(GARBAGE)
            found = communicator.exchange(self.me, (kind, kind), lambda peer: sent[peer].read(), sizes)
            found[self.me] = sent[self.me].read()
            for rank, place in enumerate(places):
                write(place, found[rank])

        return Operation(kind, communicator.lane, self.max_ctas, [output, given], carry)


class SentMemory:
    """Memory that nobody may change until it is sent."""

    def __init__(self, memory: Tensor, what: str) -> None:
        self._memory, self._before, self._what = memory, memory.clone(), what

    def read(self) -> bytes:
        if not torch.equal(self._memory, self._before):
            give_up(f"the memory of a {self._what} has changed before it was sent")
        return self._memory.numpy().tobytes()


def write(memory: Tensor, found: bytes) -> None:
    """Puts received bytes in their place."""
    if found:
        memory.copy_(torch.frombuffer(bytearray(found), dtype=torch.uint8))


def bytes_of(tensor: Tensor) -> Tensor:
    """Its memory, as the host sees it."""
    if not tensor.is_contiguous():
        raise ValueError("Tensors must be contiguous")
    return on_host(tensor).detach().reshape(-1).view(torch.uint8)


def _split(tensor: Tensor, lengths: Sequence[int], count: int) -> Sequence[Tensor]:
    if not lengths and len(tensor) % count:
        raise RuntimeError("Tensor's dim 0 does not divide equally across group size")
    return tensor.split([*lengths] or [len(tensor) // count] * count)


def _reduction(opts: Any) -> Callable[[Tensor], Tensor]:
    kinds: dict[Any, Callable[[Tensor], Tensor]] = {
        dist.ReduceOp.SUM: lambda all_: all_.sum(0, dtype=all_.dtype),
        dist.ReduceOp.AVG: lambda all_: all_.mean(0),
        dist.ReduceOp.MAX: lambda all_: all_.amax(0),
        dist.ReduceOp.MIN: lambda all_: all_.amin(0),
    }
    return next(found for kind, found in kinds.items() if opts is None or opts.reduceOp == kind)


class _Options:
    """Stands for ProcessGroupNCCL.Options."""

    def __init__(self, **_given: Any) -> None:
        self.config = SimpleNamespace(max_ctas=_USUAL_CTAS, min_ctas=1, cga_cluster_size=4)


def install() -> None:
    """Puts such groups in the place of NCCL's in this process; once."""
    if hasattr(dist.Backend, NAME.upper()):
        return
    fake_gpu.install()
    dist.Backend.register_backend(NAME, StrictGroup, extended_api=True, devices=["cpu", fake_gpu.NAME])
    made = dist.new_group

    def new_group(*args: Any, backend: str | None = None, **options: Any) -> Any:
        return made(*args, backend=NAME if backend == "nccl" else backend, **options)

    dist.new_group = new_group
    for module in (dist, distributed_c10d):
        module.is_nccl_available = lambda: True  # type: ignore[assignment]
    dist.ProcessGroupNCCL = SimpleNamespace(Options=_Options)  # type: ignore[misc, assignment]
