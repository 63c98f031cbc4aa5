"""A process group that follows NCCL's rules."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Client, Connection, Listener
from typing import Any

import torch
import torch.distributed as dist
from support.fake_gpu import GARBAGE, give_up, on_host, patience
from support.fake_gpu import NAME as DEVICE
from support.strict_nccl.communicator import Communicator
from support.strict_nccl.operations import AwaitedOnHost, Operation, SentMemory, bytes_of, write
from torch import Tensor

NAME = "strict_nccl"
USUAL_CTAS = 32  # what NCCL may take over NVLink where nobody says otherwise
_POLL = 0.002

groups: list[StrictGroup] = []
"""All that were made in this process; `max_ctas` says what each may take."""
_numbers = itertools.count()


class StrictGroup(dist.ProcessGroup):
    """A process group with NCCL's rules."""

    def __init__(self, made: Any, options: Any) -> None:
        super().__init__(made.group_rank, made.group_size)
        self.me, self.count, self._store = made.group_rank, made.group_size, made.store
        self.max_ctas = options.config.max_ctas if options is not None else USUAL_CTAS
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
        return self._collective("barrier", torch.zeros(1, device=DEVICE), None, lambda _found: None, AwaitedOnHost)

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
