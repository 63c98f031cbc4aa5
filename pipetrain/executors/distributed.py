"""This process's one stage, connected to its neighbours by messages."""

import time
from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from pipetrain.data.loader import Loader
from pipetrain.data.microbatches import microbatch_sizes
from pipetrain.executors.base import ManyProcesses, Waiting
from pipetrain.executors.drain_interval import DrainInterval
from pipetrain.executors.evaluation import Score
from pipetrain.executors.feed import LoaderFeed
from pipetrain.executors.p2p import NEVER, Incoming, Key, Link, Outgoing
from pipetrain.executors.phase import Phase
from pipetrain.executors.stage_runner import BackwardId, OnStep, StageRunner
from pipetrain.program.steady_state import peak_in_flight
from pipetrain.schedules import Kind, Operation, Placement
from pipetrain.stage.module import MicrobatchId
from pipetrain.stage.stage import Stage
from pipetrain.tensors import Tensors
from pipetrain.tracking.trace_writer import TraceFile

_EVALUATION_AHEAD = 2


class _Neighbours:
    """The ports of one stage: links to the stage before and behind, one process group for each direction."""

    def __init__(self, stage: Stage, num_stages: int, direct: bool, waiting: Waiting) -> None:
        self._stages = num_stages
        self._waiting = waiting
        r, device = stage.index, stage.device
        groups = groups_of_neighbours(num_stages, direct, device)

        def link(peer: int, forward: bool) -> Link:
            return Link(peer, peer, groups[min(r, peer), forward], device, direct, waiting)

        self.activations_in = Incoming(link(r - 1, True), f"activations from stage {r - 1}") if r > 0 else None
        self.gradients_out = Outgoing(link(r - 1, False), f"gradients to stage {r - 1}") if r > 0 else None
        self.activations_out = (
            Outgoing(link(r + 1, True), f"activations to stage {r + 1}") if r < num_stages - 1 else None
        )
        self.gradients_in = (
            Incoming(link(r + 1, False), f"gradients from stage {r + 1}") if r < num_stages - 1 else None
        )
        self._activations_kept = 0
        self._gradients_kept = 0
        self._keys: dict[BackwardId, Key] = {}
        self._own_norm = torch.zeros(())

    def begin(
        self,
        lists: Sequence[Sequence[Operation]],
        r: int,
        start: int,
        num_microbatches: int,
        keys: dict[BackwardId, Key],
    ) -> None:
        """Announces an interval: which messages will come, and how many sent ones may be unread at any time."""
        self._keys = keys
        # when F(k) of a stage runs, the messages of all microbatches that it has taken back are long delivered
        self._activations_kept = peak_in_flight(lists[r], num_microbatches) + 1
        self._gradients_kept = peak_in_flight(lists[r - 1], num_microbatches) + 1 if r > 0 else 0
        for inbox, kind in ((self.activations_in, Kind.FORWARD), (self.gradients_in, Kind.BACKWARD)):
            if inbox is not None:
                inbox.expect(keys[start + op.minibatch, op.microbatch] for op in lists[r] if op.kind is kind)

    def end(self) -> None:
        """Waits until the neighbours have taken everything."""
        for outbox in (self.activations_out, self.gradients_out):
            if outbox is not None:
                outbox.settle(0)

    def receive_activations(self, microbatch: MicrobatchId) -> Tensors:
        assert self.activations_in is not None
        return self.activations_in.take()

    def send_activations(self, microbatch: MicrobatchId, tensors: Tensors) -> None:
        assert self.activations_out is not None
        self.activations_out.send(self._keys[microbatch], tensors)
        self.activations_out.settle(self._activations_kept)

    def receive_gradients(self, microbatch: BackwardId) -> Tensors:
        assert self.gradients_in is not None
        return self.gradients_in.take()

    def send_gradients(self, microbatch: BackwardId, tensors: Tensors) -> None:
        assert self.gradients_out is not None
        self.gradients_out.send(self._keys[microbatch], tensors)
        self.gradients_out.settle(self._gradients_kept)

    def receive_recomputed(self) -> Tensors:
        raise RuntimeError("only the simulator recomputes across stages")

    def send_recomputed(self, tensors: Tensors) -> None:
        raise RuntimeError("only the simulator recomputes across stages")

    def offer_norm(self, minibatch: int, own: Tensor) -> None:
        self._own_norm = own.cpu()

    def norms(self, minibatch: int) -> list[Tensor]:
        norms = [torch.empty_like(self._own_norm) for _ in range(self._stages)]
        with self._waiting("the gradient norms of all stages"):
            dist.all_gather(norms, self._own_norm)
        return norms


class DistributedExecutor(ManyProcesses):
    """One stage in this process, the others in theirs; torch.distributed's default group (Gloo) is for control.

    Args:
        direct: whether activations and gradients go over NCCL from device to device.
        waiting: a context around every wait for another process.
    """

    def __init__(
        self,
        stage: Stage,
        phases: Sequence[Phase],
        clip_norm: float | None,
        on_step: OnStep,
        on_operation: Callable[[Operation], None],
        waiting: Waiting,
        direct: bool,
        trace: TraceFile | None = None,
    ) -> None:
        placement = Placement.one_each(phases[0].rules.num_stages)
        super().__init__(phases, placement, waiting, clip_norm, on_step, trace)
        self.stages = [stage]
        self._stage = stage
        stage.clock.traced = trace is not None
        self._on_operation = on_operation
        self._ports = _Neighbours(stage, self.total_stages, direct, waiting)

    def train(self, loader: Loader, interval: DrainInterval) -> list[float]:
        """Carries out the interval; the share of its time in which this stage computed nothing."""
        rules = self.enter(interval)
        keys = _keys(loader, interval, rules.num_microbatches)
        lists = rules.lists(interval.minibatches)
        self._ports.begin(lists, self._stage.index, interval.start, rules.num_microbatches, keys)
        runner = StageRunner(
            stage=self._stage,
            rules=rules,
            minibatches=interval.minibatches,
            start=interval.start,
            ports=self._ports,
            feed=self._feed(loader, interval),
            clipping=self.clipping(rules),
            on_step=self.on_step,
            on_operation=self._on_operation,
        )
        began = time.perf_counter()
        while runner.next:
            runner.step()
        self._ports.end()
        spans, seconds = self._stage.clock.take(), time.perf_counter() - began
        if self.trace is not None:
            waits = self._stage.clock.take_waits()
            self.trace.add(self._stage.index, runner.readings, spans, waits, runner.start, runner.base)
        return [1.0 - sum(span.seconds for span in spans) / seconds]

    def _feed(self, loader: Loader, interval: DrainInterval) -> LoaderFeed:
        first, last = self._stage.index == 0, self._stage.index == self.total_stages - 1
        return LoaderFeed(loader, interval, self._stage.device, inputs=first, targets=last)

    def evaluate(self, loader: Loader) -> dict[str, float] | None:
        """Forward only, through the same connections; metrics on the last stage."""
        ports = self._ports
        if ports.activations_in is not None:
            ports.activations_in.expect(("evaluation", size) for size in loader.sizes)
        everything = DrainInterval(epoch=0, first=0, last=len(loader), start=0)
        feed = self._feed(loader, everything)
        score = Score(self._stage.loss) if self._stage.loss is not None else None
        for size in loader.sizes:
            inputs = feed.inputs() if ports.activations_in is None else ports.activations_in.take()
            outputs = self._stage.evaluate(inputs)
            if score is not None:
                score.add(outputs, feed.targets())
            elif ports.activations_out is not None:
                ports.activations_out.send(("evaluation", size), outputs)
                ports.activations_out.settle(_EVALUATION_AHEAD)
        ports.end()
        return score.metrics() if score is not None else None


def groups_of_neighbours(
    num_stages: int, direct: bool, device: torch.device
) -> dict[tuple[int, bool], dist.ProcessGroup]:
    """(first stage of the pair, forward) -> group. Every process makes all of them, in one order, as torch requires."""
    if not direct:
        both = {forward: dist.new_group(timeout=NEVER, backend="gloo") for forward in (True, False)}
        return {(r, forward): both[forward] for r in range(num_stages - 1) for forward in (True, False)}
    groups = {
        (r, forward): dist.new_group([r, r + 1], timeout=NEVER, backend="nccl")
        for r in range(num_stages - 1)
        for forward in (True, False)
    }
    for (r, _), group in groups.items():
        _meet(r, group, device)
    return groups


def _meet(r: int, group: dist.ProcessGroup, device: torch.device) -> None:
    """A first message from stage r to the next, where this process is one of them.

    NCCL connects two processes in their first call, which returns when both have made it. A run begins by posting
    receives: each neighbour would call for its own direction, and wait for the other for ever.
    """
    if dist.get_rank() == r:
        dist.send(torch.zeros(1, device=device), r + 1, group)
    elif dist.get_rank() == r + 1:
        dist.recv(torch.zeros(1, device=device), r, group)


def _keys(loader: Loader, interval: DrainInterval, num_microbatches: int) -> dict[BackwardId, Key]:
    """What determines the shapes of a message: the samples of its microbatch, or of all of a minibatch's."""
    keys: dict[BackwardId, Key] = {}
    for t, size in enumerate(loader.sizes[interval.first : interval.last], start=interval.start):
        keys[t, None] = ("minibatch", size)
        for j, samples in enumerate(microbatch_sizes(size, num_microbatches)):
            keys[t, j] = samples
    return keys
