"""Ports of a process: links to the workers of the previous and the next stage, and to other replicas of its stage."""

import math
from collections import deque
from collections.abc import Iterator, Sequence, Set
from functools import partial
from itertools import product

import torch
import torch.distributed as dist
from torch import Tensor
from typing_extensions import override

from pipetrain.engine.executors.hooks import Around
from pipetrain.engine.executors.messages import control
from pipetrain.engine.executors.messages.links import Link, LinkGroups, Links
from pipetrain.engine.executors.messages.p2p import Incoming, Key, Outgoing, TrainingKeys
from pipetrain.engine.executors.messages.transport import Transport
from pipetrain.engine.executors.pipeline_rules import PipelineRules
from pipetrain.engine.executors.read_cursor import ReadCursor
from pipetrain.engine.executors.replicas.averaging import Round
from pipetrain.engine.executors.replicas.late_losses import LossExchange
from pipetrain.engine.executors.replicas.overlapped_averaging import OverlappedAveraging, ReplicaGroups
from pipetrain.engine.executors.stage_runner import Ports
from pipetrain.engine.executors.tied_weights import TiedMessages
from pipetrain.engine.program.repeating_list import pattern, where
from pipetrain.engine.program.steady_state import peak_of_messages
from pipetrain.engine.schedules import Kind, Operation, Placement, Replicas
from pipetrain.engine.stage.module import BackwardId
from pipetrain.engine.stage.stage import Stage
from pipetrain.engine.tensors import Tensors, dense_copy

Pair = tuple[int, int]
"""A worker of a stage, and one of the next."""


class LocalMessages:
    """Messages between two stages of one process, in order: the ends of `Outgoing` and `Incoming` in one."""

    def __init__(self) -> None:
        self._messages: deque[Tensors] = deque()

    def begin(self, *_: object) -> None:
        """Does nothing, nor do the next three: the order of the process says what comes, and nothing is under way."""

    settle = fill = discard = begin

    def send(self, _key: Key, tensors: Tensors, _kept: Set[int] = frozenset()) -> None:
        """Puts in copies, as the next stage may work in place."""
        self._messages.append(tuple(map(dense_copy, tensors)))

    def take(self) -> Tensors:
        """The next message."""
        return self._messages.popleft()

    @property
    def pending_bytes(self) -> int:
        """Number of bytes of messages that have not been taken."""
        return sum(tensor.nbytes for message in self._messages for tensor in message)


class Connections:
    """Connections of a process: links to other processes, and messages between its own stages.

    Attributes:
        links: makes the links.
        replicas, placement: of the pipeline.
        tied: sums the gradients of weights that stages share.
    """

    def __init__(self, stages: Sequence[Stage], rules: PipelineRules, transport: Transport, waiting: Around) -> None:
        self.replicas, self.placement = rules.replicas, rules.placement
        self.links = Links(transport, waiting)
        self._groups = groups_of_neighbors(self.replicas, self.links, self.placement)
        self.tied = TiedMessages(stages, partial(process_of, self.placement), self.links)
        self._local: dict[tuple[Pair, Kind], LocalMessages] = {}
        self._count = len(stages)
        self._own: dict[int, Tensor] = {}
        """Stage of this process -> its norm for an update, until all have given theirs."""
        self._all_norms: dict[int, list[Tensor]] = {}
        """Stage of this process -> the norms of all stages, until it takes them."""

    def link(self, pair: Pair, worker: int, kind: Kind) -> Link | None:
        """The link of a worker of the pair for messages of a kind; None if the other one is in this process, too."""
        groups, peer = self._groups.get((pair, kind)), sum(pair) - worker
        return groups and self.links.to(process_of(self.placement, peer), self.replicas.stage_of(peer), groups)

    def local(self, pair: Pair, kind: Kind) -> LocalMessages:
        """The messages of a kind between two workers of this process."""
        return self._local.setdefault((pair, kind), LocalMessages())

    def norms(self, stage: int, norm: Tensor) -> list[Tensor] | None:
        """Squared gradient norms of all stages in order; None until all stages of this process have given theirs."""
        if stage not in self._own and stage not in self._all_norms:
            self.links.catch_up()  # what the device waits for is another process's to send
            with self.links.waiting("its device"):
                self._own[stage] = norm.cpu().double()  # of one type in all stages, whatever their gradients have
        if len(self._own) == self._count:
            own = torch.stack([self._own[r] for r in sorted(self._own)])
            gathered = [torch.empty_like(own) for _ in self.placement.stages_of]
            with self.links.waiting("the gradient norms of all stages"), control.lost_stage_on_error():
                dist.all_gather(gathered, own)
            in_order = self.placement.in_order([each.unbind() for each in gathered])
            places = self.replicas.places
            norms = [norm for norm, (_, replica) in zip(in_order, places, strict=True) if replica == 0]
            self._all_norms, self._own = dict.fromkeys(self._own, norms), {}
        return self._all_norms.pop(stage, None)


class Neighbors(Ports):
    """Ports of one worker: links to the workers of neighboring stages that it shares minibatches with.

    Attributes:
        incoming, outgoing: (kind of the operation that takes the messages, worker at the other end) -> messages.
        replica_groups: None for a stage without replicas.
    """

    def __init__(self, stage: Stage, connections: Connections) -> None:
        self._stage = stage
        self._connections = connections
        self._replicas = replicas = connections.replicas
        self._worker = worker = replicas.workers_of(stage.index)[stage.replica]
        self.incoming: dict[tuple[Kind, int], Incoming | LocalMessages] = {}
        self.outgoing: dict[tuple[Kind, int], Outgoing | LocalMessages] = {}
        for pair, kind in product(connection_order(replicas), (Kind.FORWARD, Kind.BACKWARD)):
            if worker not in pair:
                continue
            peer, what = sum(pair) - worker, "activations" if kind is Kind.FORWARD else "gradients"
            link, takes = connections.link(pair, worker, kind), (worker == pair[1]) is (kind is Kind.FORWARD)
            if link is None:
                (self.incoming if takes else self.outgoing)[kind, peer] = connections.local(pair, kind)
            elif takes:
                self.incoming[kind, peer] = Incoming(link, f"{what} from {replicas.name(peer)}")
            else:
                self.outgoing[kind, peer] = Outgoing(link, f"{what} to {replicas.name(peer)}")
        self._kept: dict[tuple[Kind, int], int] = {}
        self._keys: TrainingKeys | None = None
        self._start = 0
        self.tied = connections.tied
        links = connections.links
        self.replica_groups = ReplicaGroups.of(replicas, worker, links.transport)
        self.averaging: OverlappedAveraging | None = None
        self.losses: LossExchange | None = None
        if self.replica_groups is not None and replicas.train_alone:
            self.losses = self.replica_groups.exchange_of_losses(links.waiting)
        elif self.replica_groups is not None:
            self.averaging = OverlappedAveraging(stage.weights.trainable, self.replica_groups, links.waiting)

    def begin(self, minibatches: int, cursor: ReadCursor[Stage], keys: TrainingKeys) -> None:
        """Announces an interval of this number of minibatches, given the keys of all messages.

        The lists of this worker and its neighbors say which messages will come, and how many sent ones may be unread
        at any time.
        """
        self._keys, self._start = keys, cursor.start

        def shared(worker: int, other: int) -> Sequence[Operation]:
            """The part of a worker's list whose minibatches the other one also has."""
            stage = self._replicas.stage_of(other)
            listed = cursor.rules.worker_list(worker, minibatches)
            return where(listed, lambda op: self._replicas.worker(stage, op.minibatch) == other)

        def kept(kind: Kind, peer: int) -> int:
            # when F(k) of a stage runs, the messages of all microbatches that it has taken back are long delivered
            first, second = (self._worker, peer) if kind is Kind.FORWARD else (peer, self._worker)
            return peak_of_messages(pattern(shared(first, second)), cursor.rules.num_microbatches, kind) + 1

        self._kept = {(kind, peer): kept(kind, peer) for kind, peer in self.outgoing}

        def messages(kind: Kind, source: int, target: int) -> Iterator[Key]:
            operations = where(shared(target, source), lambda op: op.kind is kind)
            return (keys[cursor.start + op.minibatch, op.microbatch] for op in operations)

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
        self._connections.links.catch_up()
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
        assert self._keys is not None, "an interval has begun"
        self.outgoing[link].send(self._keys[microbatch], tensors, self._stage.kept_outputs(*microbatch))
        self.outgoing[link].settle(self._kept[link])
        self._stage.message_bytes = sum(outbox.pending_bytes for outbox in self.outgoing.values())

    @override
    def norms(self, _this: Round, norm: Tensor) -> list[Tensor] | None:
        return self._connections.norms(self._stage.index, norm)


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


def process_of(placement: Placement | None, worker: int) -> int:
    """The process of a worker: several, which are stages without replicas, share one only under a placement."""
    return placement.process_of(worker) if placement is not None and placement.several else worker


def groups_of_neighbors(
    replicas: Replicas, links: Links, placement: Placement | None = None
) -> dict[tuple[Pair, Kind], LinkGroups]:
    """((worker, one of the next stage), kind) -> its groups, connected in the direction of the kind's messages.

    Every process makes all of them, in one order, as torch requires. Workers of one process have none.
    """
    transport, made = links.transport, dict[tuple[Pair, Kind], LinkGroups]()
    there = transport.control_group()
    # shapes of both directions can share a group, as each process counts what it sends to a peer, link by link
    meshes = {Kind.FORWARD: there, Kind.BACKWARD: there if transport.direct else transport.control_group()}
    pairs = connection_order(replicas)
    channels = 2 * len(pairs) if placement is not None and placement.several else 1
    for index, pair in enumerate(pairs):
        before, behind = (process_of(placement, worker) for worker in pair)
        for kind, mesh in meshes.items() if before != behind else ():
            payload = transport.new_group(sorted((before, behind))) if transport.direct else mesh
            channel = (2 * index + (kind is Kind.BACKWARD)) % channels
            groups = made[pair, kind] = LinkGroups(payload, mesh, channel, channels)
            source, target = (before, behind) if kind is Kind.FORWARD else (behind, before)
            transport.connect(source, target, groups.payload, groups.headers)
    return made
