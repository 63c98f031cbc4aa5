"""Ports of a process: links to the workers of the previous and the next stage, and to other replicas of its stage."""

import math
from collections.abc import Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor
from typing_extensions import override

from pipetrain.executors.hooks import Around
from pipetrain.executors.messages import control
from pipetrain.executors.messages.links import Link, LinkGroups, Links
from pipetrain.executors.messages.p2p import Incoming, Key, Outgoing
from pipetrain.executors.messages.transport import Transport
from pipetrain.executors.read_cursor import ReadCursor
from pipetrain.executors.replicas.averaging import AveragedGradients, LocalGradients, Round
from pipetrain.executors.replicas.overlapped_averaging import OverlappedAveraging
from pipetrain.executors.replicas.process_groups import ReplicaGroups
from pipetrain.executors.stage_runner import BackwardId, Ports
from pipetrain.executors.tied_weights import TiedMessages
from pipetrain.program.steady_state import peak_in_flight
from pipetrain.schedules import Kind, Operation, Replicas
from pipetrain.stage.module import MicrobatchId
from pipetrain.stage.stage import Stage
from pipetrain.tensors import Tensors

Pair = tuple[int, int]
"""A worker of a stage, and one of the next."""


class Neighbors(Ports):
    """Ports of one worker: links to the workers of neighboring stages that it shares minibatches with.

    Args:
        stage: of this process.
        replicas: of all stages.
        transport: of the run.
        waiting: a context around every wait for another process.
    """

    def __init__(self, stage: Stage, replicas: Replicas, transport: Transport, waiting: Around) -> None:
        self._stage = stage
        self._replicas = replicas
        self._waiting = waiting
        self._worker = replicas.workers_of(stage.index)[stage.replica]
        self._links = links = Links(transport, waiting)
        groups = groups_of_neighbors(replicas, links)

        def link(peer: int, *, forward: bool) -> Link:
            pair = min(self._worker, peer), max(self._worker, peer)
            return links.to(peer, replicas.stage_of(peer), groups[pair, forward])

        before, behind = neighbors_of(replicas, self._worker)
        name = replicas.name
        self.activations_in = {w: Incoming(link(w, forward=True), f"activations from {name(w)}") for w in before}
        self.gradients_out = {w: Outgoing(link(w, forward=False), f"gradients to {name(w)}") for w in before}
        self.activations_out = {w: Outgoing(link(w, forward=True), f"activations to {name(w)}") for w in behind}
        self.gradients_in = {w: Incoming(link(w, forward=False), f"gradients from {name(w)}") for w in behind}
        self._activations_kept = 0
        self._gradients_kept = 0
        self._keys: dict[BackwardId, Key] = {}
        self._start = 0
        self._own_norm = torch.zeros(())
        self._tied = TiedMessages([stage], lambda r: r, links)
        self.replica_groups = ReplicaGroups.of(replicas, self._worker, transport)
        self._rounds: OverlappedAveraging | None = None
        self._offered: LocalGradients | None = None
        if self.replica_groups is not None:
            self._rounds = OverlappedAveraging(stage.weights.trainable, self.replica_groups, waiting)

    def begin(
        self, lists: Sequence[Sequence[Operation]], cursor: ReadCursor[Stage], keys: dict[BackwardId, Key]
    ) -> None:
        """Announces an interval: which messages will come, and how many sent ones may be unread at any time.

        Args:
            lists: of all workers.
            cursor: at the beginning of this worker's list.
            keys: what determines the shapes of each message.
        """
        self._keys, self._start = keys, cursor.start
        num_microbatches = cursor.rules.num_microbatches
        # when F(k) of a stage runs, the messages of all microbatches that it has taken back are long delivered
        self._activations_kept = peak_in_flight(lists[self._worker], num_microbatches) + 1
        self._gradients_kept = max(
            (peak_in_flight(lists[w], num_microbatches) + 1 for w in self.gradients_out), default=0
        )
        r = self._stage.index
        for inboxes, kind, other in (
            (self.activations_in, Kind.FORWARD, r - 1),
            (self.gradients_in, Kind.BACKWARD, r + 1),
        ):
            arriving = [op for op in lists[self._worker] if op.kind is kind]
            for peer, inbox in inboxes.items():
                inbox.begin(
                    keys[cursor.start + op.minibatch, op.microbatch]
                    for op in arriving
                    if self._replicas.worker(other, op.minibatch) == peer
                )

    def _peer(self, stage: int, microbatch: BackwardId) -> int:
        """Worker of another stage that also has a microbatch."""
        return self._replicas.worker(stage, microbatch[0] - self._start)

    def end(self) -> None:
        """Waits until the last messages have come, and the neighbors have taken everything."""
        self._links.catch_up()
        for outbox in (*self.activations_out.values(), *self.gradients_out.values()):
            outbox.settle(0)

    @override
    def receive_activations(self, microbatch: MicrobatchId) -> Tensors:
        return self.activations_in[self._peer(self._stage.index - 1, microbatch)].take()

    @override
    def send_activations(self, microbatch: MicrobatchId, tensors: Tensors) -> None:
        outbox = self.activations_out[self._peer(self._stage.index + 1, microbatch)]
        outbox.send(self._keys[microbatch], tensors)
        outbox.settle(self._activations_kept)

    @override
    def receive_gradients(self, microbatch: BackwardId) -> Tensors:
        return self.gradients_in[self._peer(self._stage.index + 1, microbatch)].take()

    @override
    def send_gradients(self, microbatch: BackwardId, tensors: Tensors) -> None:
        outbox = self.gradients_out[self._peer(self._stage.index - 1, microbatch)]
        outbox.send(self._keys[microbatch], tensors)
        outbox.settle(self._gradients_kept)

    @override
    def put_gradient(self, name: str, gradient: Tensor) -> None:
        assert self._rounds is not None, "a stage without replicas"
        self._rounds.put(name, gradient)

    @override
    def offer_round(self, _this: Round, found: LocalGradients) -> None:
        self._offered = found

    @override
    def found(self, this: Round) -> AveragedGradients:
        assert self._rounds is not None, "a stage without replicas"
        assert self._offered is not None, "nothing was offered"
        found, self._offered = self._rounds.take(this, self._offered), None
        return found

    @override
    def receive_recomputed(self) -> Tensors:
        raise RuntimeError("only the simulator recomputes across stages")

    @override
    def send_recomputed(self, _: Tensors) -> None:
        raise RuntimeError("only the simulator recomputes across stages")

    @override
    def offer_norm(self, norm: Tensor) -> None:
        self._links.catch_up()  # what the device waits for is another process's to send
        with self._waiting("its device"):
            self._own_norm = norm.cpu()

    @override
    def norms(self) -> list[Tensor]:
        norms = [torch.empty_like(self._own_norm) for _ in self._replicas.places]
        with self._waiting("the gradient norms of all stages"), control.lost_stage_on_error():
            dist.all_gather(norms, self._own_norm)
        return [norm for norm, (_, replica) in zip(norms, self._replicas.places, strict=True) if replica == 0]

    @override
    def offer_tied(self, gradients: Mapping[str, Tensor]) -> None:
        self._tied.offer(self._stage, gradients)

    @override
    def tied_totals(self) -> dict[str, Tensor]:
        return self._tied.totals(self._stage)


def neighbors_of(replicas: Replicas, worker: int) -> tuple[list[int], list[int]]:
    """Workers of the previous and of the next stage that share a minibatch with `worker`."""
    r, last = replicas.stage_of(worker), len(replicas.counts) - 1
    before = _others(_pairs(replicas, r - 1), worker) if r > 0 else []
    behind = _others(_pairs(replicas, r), worker) if r < last else []
    return before, behind


def _others(pairs: Sequence[Pair], worker: int) -> list[int]:
    return [sum(pair) - worker for pair in pairs if worker in pair]


def _pairs(replicas: Replicas, stage: int) -> list[Pair]:
    """A worker of a stage and one of the next that share minibatches, in the order of the first that they share."""
    pairs = (
        (replicas.worker(stage, t), replicas.worker(stage + 1, t))
        for t in range(math.lcm(replicas.counts[stage], replicas.counts[stage + 1]))
    )
    return list(dict.fromkeys(pairs))


def groups_of_neighbors(replicas: Replicas, links: Links) -> dict[tuple[Pair, bool], LinkGroups]:
    """((worker, one of the next stage), forward) -> its groups, connected in the direction of their messages.

    Every process makes all of them, in one order, as torch requires.
    """
    transport, rank = links.transport, dist.get_rank()
    pairs = [pair for stage in range(len(replicas.counts) - 1) for pair in _pairs(replicas, stage)]
    both = {forward: transport.control_group() for forward in (True, False)}
    if not transport.direct:
        return {(pair, forward): links.groups(both[forward], both[forward]) for pair in pairs for forward in both}
    groups = {(pair, forward): transport.new_group(pair) for pair in pairs for forward in both}
    for (pair, forward), group in groups.items():
        if rank in pair:
            source, target = pair if forward else pair[::-1]
            transport.connect(source, target, group)
    return {(pair, forward): links.groups(group, both[forward]) for (pair, forward), group in groups.items()}
