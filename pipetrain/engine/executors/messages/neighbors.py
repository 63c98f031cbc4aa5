"""Ports of a process: links to the workers of the previous and the next stage, and to other replicas of its stage."""

import math
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor
from typing_extensions import override

from pipetrain.engine.executors.hooks import Around
from pipetrain.engine.executors.messages import control
from pipetrain.engine.executors.messages.links import LinkGroups, Links
from pipetrain.engine.executors.messages.p2p import Incoming, Key, Outgoing
from pipetrain.engine.executors.messages.transport import Transport
from pipetrain.engine.executors.read_cursor import ReadCursor
from pipetrain.engine.executors.replicas.averaging import Round
from pipetrain.engine.executors.replicas.overlapped_averaging import OverlappedAveraging, ReplicaGroups
from pipetrain.engine.executors.stage_runner import Ports
from pipetrain.engine.executors.tied_weights import TiedMessages
from pipetrain.engine.program.steady_state import peak_of_messages
from pipetrain.engine.schedules import Kind, Operation, Replicas
from pipetrain.engine.stage.module import BackwardId
from pipetrain.engine.stage.stage import Stage
from pipetrain.engine.tensors import Tensors

Pair = tuple[int, int]
"""A worker of a stage, and one of the next."""


class Neighbors(Ports):
    """Ports of one worker: links to the workers of neighboring stages that it shares minibatches with.

    Attributes:
        incoming, outgoing: (kind of the operation that takes the messages, worker at the other end) -> messages.
        replica_groups: None for a stage without replicas.
    """

    def __init__(self, stage: Stage, replicas: Replicas, transport: Transport, waiting: Around) -> None:
        self._stage = stage
        self._replicas = replicas
        self._waiting = waiting
        self._worker = worker = replicas.workers_of(stage.index)[stage.replica]
        self._links = links = Links(transport, waiting)
        self.incoming: dict[tuple[Kind, int], Incoming] = {}
        self.outgoing: dict[tuple[Kind, int], Outgoing] = {}
        for ((before, behind), kind), groups in groups_of_neighbors(replicas, links).items():
            if worker not in (before, behind):
                continue
            peer, what = before + behind - worker, "activations" if kind is Kind.FORWARD else "gradients"
            link, name = links.to(peer, replicas.stage_of(peer), groups), replicas.name(peer)
            if (worker == behind) is (kind is Kind.FORWARD):
                self.incoming[kind, peer] = Incoming(link, f"{what} from {name}")
            else:
                self.outgoing[kind, peer] = Outgoing(link, f"{what} to {name}")
        self._kept: dict[tuple[Kind, int], int] = {}
        self._keys: dict[BackwardId, Key] = {}
        self._start = 0
        self.tied = TiedMessages([stage], lambda r: r, links)
        self.replica_groups = ReplicaGroups.of(replicas, worker, transport)
        self.averaging: OverlappedAveraging | None = None
        if self.replica_groups is not None:
            self.averaging = OverlappedAveraging(stage.weights.trainable, self.replica_groups, waiting)

    def begin(self, minibatches: int, cursor: ReadCursor[Stage], keys: dict[BackwardId, Key]) -> None:
        """Announces an interval of this number of minibatches, given the keys of all messages.

        The lists of this worker and its neighbors say which messages will come, and how many sent ones may be unread
        at any time.
        """
        self._keys, self._start = keys, cursor.start

        def operations(worker: int) -> Sequence[Operation]:
            return cursor.rules.worker_list(worker, minibatches)

        def kept(kind: Kind, peer: int) -> int:
            # when F(k) of a stage runs, the messages of all microbatches that it has taken back are long delivered
            first, second = (self._worker, peer) if kind is Kind.FORWARD else (peer, self._worker)
            of_second = self._replicas.stage_of(second)
            shared = [op for op in operations(first) if self._replicas.worker(of_second, op.minibatch) == second]
            return peak_of_messages(shared, cursor.rules.num_microbatches, kind) + 1

        self._kept = {(kind, peer): kept(kind, peer) for kind, peer in self.outgoing}

        def messages(kind: Kind, source: int, target: int) -> list[Key]:
            return [
                keys[cursor.start + op.minibatch, op.microbatch]
                for op in operations(target)
                if op.kind is kind and self._replicas.worker(self._replicas.stage_of(source), op.minibatch) == source
            ]

        for (kind, peer), outbox in self.outgoing.items():
            outbox.begin(messages(kind, self._worker, peer))
        for (kind, peer), inbox in self.incoming.items():
            inbox.begin(messages(kind, peer, self._worker))

    def _peer(self, stage: int, microbatch: BackwardId) -> int:
        """Worker of another stage that also has a microbatch."""
        return self._replicas.worker(stage, microbatch[0] - self._start)

    def end(self, *, early: bool = False) -> None:
        """Waits until the last messages have come, and the neighbors have taken everything.

        Args:
            early: True if the lists ended early, so that no messages will come that some have prepared for. After a
                pause, the minibatches may go to other replicas.
        """
        self._links.catch_up()
        if early:
            for outbox in self.outgoing.values():
                outbox.fill()
            for inbox in self.incoming.values():
                inbox.discard()
        for outbox in self.outgoing.values():
            outbox.settle(0)
        self._stage.message_bytes = 0

    @override
    def receive(self, kind: Kind, microbatch: BackwardId) -> Tensors:
        source = self._stage.index + (1 if kind is Kind.BACKWARD else -1)
        return self.incoming[kind, self._peer(source, microbatch)].take()

    @override
    def send(self, kind: Kind, microbatch: BackwardId, tensors: Tensors) -> None:
        target = self._stage.index + (-1 if kind is Kind.BACKWARD else 1)
        link = kind, self._peer(target, microbatch)
        self.outgoing[link].send(self._keys[microbatch], tensors, self._stage.kept_outputs(*microbatch))
        self.outgoing[link].settle(self._kept[link])
        self._stage.message_bytes = sum(outbox.pending_bytes for outbox in self.outgoing.values())

    @override
    def norms(self, _this: Round, norm: Tensor) -> list[Tensor]:
        self._links.catch_up()  # what the device waits for is another process's to send
        with self._waiting("its device"):
            own = norm.cpu().double()  # of one type in all stages, whatever their gradients have
        norms = [torch.empty_like(own) for _ in self._replicas.places]
        with self._waiting("the gradient norms of all stages"), control.lost_stage_on_error():
            dist.all_gather(norms, own)
        return [norm for norm, (_, replica) in zip(norms, self._replicas.places, strict=True) if replica == 0]


def connection_order(replicas: Replicas) -> list[Pair]:
    """Pairs of workers of neighboring stages that share minibatches: of stages 0 and 1, 2 and 3, ..., then of the rest.

    All pairs of one half can connect at the same time, unless they share a worker.
    """
    counts = replicas.counts
    before = range(len(counts) - 1)
    return [
        (replicas.worker(stage, t), replicas.worker(stage + 1, t))
        for stage in (*before[::2], *before[1::2])
        for t in range(math.lcm(counts[stage], counts[stage + 1]))
    ]


def groups_of_neighbors(replicas: Replicas, links: Links) -> dict[tuple[Pair, Kind], LinkGroups]:
    """((worker, one of the next stage), kind) -> its groups, connected in the direction of the kind's messages.

    Every process makes all of them, in one order, as torch requires.
    """
    transport, made = links.transport, dict[tuple[Pair, Kind], LinkGroups]()
    there = transport.control_group()
    # shapes of both directions can share a group, as each process counts what it sends to a peer
    meshes = {Kind.FORWARD: there, Kind.BACKWARD: there if transport.direct else transport.control_group()}
    for pair in connection_order(replicas):
        for kind, mesh in meshes.items():
            groups = made[pair, kind] = LinkGroups(transport.new_group(pair) if transport.direct else mesh, mesh)
            source, target = pair if kind is Kind.FORWARD else pair[::-1]
            transport.connect(source, target, *groups)
    return made
