"""This process's one stage, connected to its neighbors by messages."""

import time
from collections.abc import Iterator, Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor
from typing_extensions import override

from pipetrain.data.loader import Loader
from pipetrain.executors import exchange
from pipetrain.executors.base import IntervalTimes, ManyProcesses
from pipetrain.executors.feed import Feed
from pipetrain.executors.hooks import Around, RunHooks
from pipetrain.executors.message_keys import evaluation_keys, training_keys
from pipetrain.executors.p2p import NEVER, Incoming, Key, Link, Outgoing, meet
from pipetrain.executors.phase import Phase
from pipetrain.executors.read_cursor import ReadCursor
from pipetrain.executors.stage_runner import BackwardId, StageRunner
from pipetrain.executors.tied_messages import TiedMessages
from pipetrain.program.drain_interval import DrainInterval
from pipetrain.program.steady_state import peak_in_flight
from pipetrain.schedules import Kind, Operation
from pipetrain.stage.module import MicrobatchId
from pipetrain.stage.stage import Stage
from pipetrain.tensors import Tensors
from pipetrain.tracking.trace_writer import TracedList

_EVALUATION_AHEAD = 2


class _Neighbors:
    """The ports of one stage: links to the stage before and behind, one process group for each direction."""

    def __init__(self, stage: Stage, num_stages: int, waiting: Around, *, device_to_device: bool) -> None:
        self._num_stages = num_stages
        self._waiting = waiting
        r, device = stage.index, stage.device
        groups = groups_of_neighbors(num_stages, device, device_to_device=device_to_device)

        def link(peer: int, *, forward: bool) -> Link:
            return Link(peer, peer, groups[min(r, peer), forward], device, device_to_device, waiting)

        self.activations_in: Incoming | None = None
        self.gradients_out: Outgoing | None = None
        self.activations_out: Outgoing | None = None
        self.gradients_in: Incoming | None = None
        if r > 0:
            self.activations_in = Incoming(link(r - 1, forward=True), f"activations from stage {r - 1}")
            self.gradients_out = Outgoing(link(r - 1, forward=False), f"gradients to stage {r - 1}")
        if r < num_stages - 1:
            self.activations_out = Outgoing(link(r + 1, forward=True), f"activations to stage {r + 1}")
            self.gradients_in = Incoming(link(r + 1, forward=False), f"gradients from stage {r + 1}")
        self._activations_kept = 0
        self._gradients_kept = 0
        self._keys: dict[BackwardId, Key] = {}
        self._own_norm = torch.zeros(())
        self._stage = stage
        self._tied = TiedMessages([stage], lambda r: r, waiting, device_to_device=device_to_device)

    def begin(
        self, lists: Sequence[Sequence[Operation]], cursor: ReadCursor[Stage], keys: dict[BackwardId, Key]
    ) -> None:
        """Announces an interval: which messages will come, and how many sent ones may be unread at any time.

        Args:
            lists: of all stages.
            cursor: at the beginning of this stage's list.
            keys: what determines the shapes of each message.
        """
        self._keys = keys
        r, num_microbatches = cursor.stage.index, cursor.rules.num_microbatches
        # when F(k) of a stage runs, the messages of all microbatches that it has taken back are long delivered
        self._activations_kept = peak_in_flight(lists[r], num_microbatches) + 1
        self._gradients_kept = peak_in_flight(lists[r - 1], num_microbatches) + 1 if r > 0 else 0
        for inbox, kind in ((self.activations_in, Kind.FORWARD), (self.gradients_in, Kind.BACKWARD)):
            if inbox is not None:
                inbox.expect(keys[cursor.start + op.minibatch, op.microbatch] for op in lists[r] if op.kind is kind)

    def end(self) -> None:
        """Waits until the neighbors have taken everything."""
        for outbox in (self.activations_out, self.gradients_out):
            if outbox is not None:
                outbox.settle(0)

    def receive_activations(self) -> Tensors:
        assert self.activations_in is not None
        return self.activations_in.take()

    def send_activations(self, microbatch: MicrobatchId, tensors: Tensors) -> None:
        assert self.activations_out is not None
        self.activations_out.send(self._keys[microbatch], tensors)
        self.activations_out.settle(self._activations_kept)

    def receive_gradients(self) -> Tensors:
        assert self.gradients_in is not None
        return self.gradients_in.take()

    def send_gradients(self, microbatch: BackwardId, tensors: Tensors) -> None:
        assert self.gradients_out is not None
        self.gradients_out.send(self._keys[microbatch], tensors)
        self.gradients_out.settle(self._gradients_kept)

    def receive_recomputed(self) -> Tensors:
        raise RuntimeError("only the simulator recomputes across stages")

    def send_recomputed(self, _: Tensors) -> None:
        raise RuntimeError("only the simulator recomputes across stages")

    def offer_norm(self, norm: Tensor) -> None:
        self._own_norm = norm.cpu()

    def norms(self) -> list[Tensor]:
        norms = [torch.empty_like(self._own_norm) for _ in range(self._num_stages)]
        with self._waiting("the gradient norms of all stages"), exchange.connected():
            dist.all_gather(norms, self._own_norm)
        return norms

    def offer_tied(self, gradients: Mapping[str, Tensor]) -> None:
        self._tied.offer(self._stage, gradients)

    def tied_totals(self) -> dict[str, Tensor]:
        return self._tied.totals(self._stage)


class DistributedExecutor(ManyProcesses):
    """One stage in this process, the others in theirs; torch.distributed's default group (Gloo) is for control.

    Args:
        stage: of this process.
        phases: of the run.
        hooks: who is told what happens.
        clip_norm: the largest norm of a gradient; None for no clipping.
        device_to_device: whether activations and gradients go over NCCL from device to device.
    """

    def __init__(
        self,
        stage: Stage,
        phases: Sequence[Phase],
        hooks: RunHooks,
        clip_norm: float | None = None,
        *,
        device_to_device: bool = False,
    ) -> None:
        super().__init__(phases, hooks, clip_norm)
        self.stages = [stage]
        self._stage = stage
        stage.clock.traced = hooks.trace is not None
        self._ports = _Neighbors(stage, self.num_stages, hooks.waiting, device_to_device=device_to_device)

    @override
    def train(self, loader: Loader, interval: DrainInterval) -> IntervalTimes:
        rules = self.enter(interval)
        cursor = ReadCursor(self._stage, rules, interval)
        keys = training_keys(loader, interval, rules.num_microbatches)
        self._ports.begin(rules.lists(interval.minibatches), cursor, keys)
        feed = self.feed(loader, interval, self.stages)
        runner = StageRunner(cursor, self._ports, feed, self.clipping(rules), self.hooks)
        began = time.perf_counter()
        while runner.next:
            if cursor.opens and not self.hooks.gate.passes():
                cursor.end_before(runner.next.minibatch)
            else:
                runner.step()
        self._ports.end()
        self._drained()
        spans, seconds = self._stage.clock.take(), time.perf_counter() - began
        if self.hooks.trace is not None:
            waits = self._stage.clock.take_waits()
            traced = TracedList(self._stage.index, cursor.planned, cursor.start, cursor.base, spans, waits)
            self.hooks.trace.add(interval, [traced])
        return IntervalTimes([1.0 - sum(span.seconds for span in spans) / seconds])

    @override
    def evaluate(self, loader: Loader) -> dict[str, float] | None:
        """Forward only, through the same connections; metrics on the last stage."""
        self.begin_evaluation()
        if self._ports.activations_in is not None:
            self._ports.activations_in.expect(evaluation_keys(loader))
        feed = self.feed(loader, DrainInterval.whole(len(loader)), self.stages)
        metrics = self._metrics(self._outputs(evaluation_keys(loader), feed), feed, self._stage.loss)
        self._ports.end()
        return metrics

    def _outputs(self, keys: Sequence[Key], feed: Feed) -> Iterator[Tensors]:
        """This stage's outputs of each part of the evaluation set, sent on to the stage behind."""
        ports = self._ports
        for part, key in enumerate(keys, start=1):
            self.hooks.on_progress(f"evaluation {part} of {len(keys)}")
            inputs = feed.inputs() if ports.activations_in is None else ports.activations_in.take()
            outputs = self._stage.evaluate(inputs)
            if ports.activations_out is not None:
                ports.activations_out.send(key, outputs)
                ports.activations_out.settle(_EVALUATION_AHEAD)
            yield outputs


def groups_of_neighbors(
    num_stages: int, device: torch.device, *, device_to_device: bool
) -> dict[tuple[int, bool], dist.ProcessGroup]:
    """(first stage of the pair, forward) -> group. Every process makes all of them, in one order, as torch requires."""
    if not device_to_device:
        both = {forward: dist.new_group(timeout=NEVER, backend="gloo") for forward in (True, False)}
        return {(r, forward): both[forward] for r in range(num_stages - 1) for forward in (True, False)}
    groups = {
        (r, forward): dist.new_group([r, r + 1], timeout=NEVER, backend="nccl")
        for r in range(num_stages - 1)
        for forward in (True, False)
    }
    for (r, _), group in groups.items():
        meet(r, r + 1, group, device)
    return groups
