"""This process's one stage, connected to its neighbours by messages."""

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from pipetrain.data.batch import microbatch_sizes
from pipetrain.data.loader import Loader
from pipetrain.executors.base import Executor, LoaderFeed, Rules, Score, Segment
from pipetrain.executors.walk import OnStep, Walker
from pipetrain.schedules import Kind, Operation
from pipetrain.stage import Stage
from pipetrain.stage_module import MicrobatchId, Tensors
from pipetrain.transport import NEVER, Incoming, Key, Link, Outgoing

Waiting = Callable[[str], AbstractContextManager[None]]

_EVALUATION_AHEAD = 2


class _Neighbours:
    """The ports of one stage: links to the stage before and behind, one process group for each direction."""

    def __init__(self, stage: Stage, stages: int, direct: bool, waiting: Waiting) -> None:
        self._stages = stages
        self._waiting = waiting
        r, device = stage.index, stage.device
        groups = _groups(stages, direct)

        def link(peer: int, forward: bool) -> Link:
            return Link(peer, peer, groups[min(r, peer), forward], device, direct, waiting)

        self.activations_in = Incoming(link(r - 1, True), f"activations from stage {r - 1}") if r > 0 else None
        self.gradients_out = Outgoing(link(r - 1, False), f"gradients to stage {r - 1}") if r > 0 else None
        self.activations_out = Outgoing(link(r + 1, True), f"activations to stage {r + 1}") if r < stages - 1 else None
        self.gradients_in = Incoming(link(r + 1, False), f"gradients from stage {r + 1}") if r < stages - 1 else None
        self._activations_kept = 0
        self._gradients_kept = 0
        self._keys: dict[MicrobatchId, Key] = {}
        self._own_norm = torch.zeros(())

    def begin(self, lists: Sequence[Sequence[Operation]], r: int, start: int, keys: dict[MicrobatchId, Key]) -> None:
        """Announces a segment: which messages will come, and how many sent ones may be unread at any time."""
        self._keys = keys
        # when F(k) of a stage runs, the messages of all microbatches that it has taken back are long delivered
        self._activations_kept = _most_in_flight(lists[r]) + 1
        self._gradients_kept = _most_in_flight(lists[r - 1]) + 1 if r > 0 else 0
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

    def receive_gradients(self, microbatch: MicrobatchId) -> Tensors:
        assert self.gradients_in is not None
        return self.gradients_in.take()

    def send_gradients(self, microbatch: MicrobatchId, tensors: Tensors) -> None:
        assert self.gradients_out is not None
        self.gradients_out.send(self._keys[microbatch], tensors)
        self.gradients_out.settle(self._gradients_kept)

    def offer_norm(self, minibatch: int, own: Tensor) -> None:
        self._own_norm = own.cpu()

    def norms(self, minibatch: int) -> list[Tensor]:
        norms = [torch.empty_like(self._own_norm) for _ in range(self._stages)]
        with self._waiting("the gradient norms of all stages"):
            dist.all_gather(norms, self._own_norm)
        return norms


class DistributedExecutor(Executor):
    """One stage in this process, the others in theirs; torch.distributed's default group (Gloo) is for control.

    Args:
        direct: whether activations and gradients go over NCCL from device to device.
        waiting: a context around every wait for another process.
    """

    def __init__(
        self,
        stage: Stage,
        rules: Rules,
        clip_norm: float | None,
        on_step: OnStep,
        on_operation: Callable[[Operation], None],
        waiting: Waiting,
        direct: bool,
    ) -> None:
        super().__init__(rules, clip_norm, on_step)
        self.stages = [stage]
        self._stage = stage
        self._on_operation = on_operation
        self._waiting = waiting
        self._ports = _Neighbours(stage, rules.stages, direct, waiting)

    def train(self, loader: Loader, segment: Segment) -> list[float]:
        """Carries out the segment; the share of its time in which this stage computed nothing."""
        minibatches = segment.last - segment.first
        keys = _microbatch_keys(loader, segment, self.rules.microbatches)
        lists = self.rules.lists(minibatches)
        self._ports.begin(lists, self._stage.index, segment.start, keys)
        walker = Walker(
            stage=self._stage,
            stages=self.rules.stages,
            readings=self.rules.readings(self._stage.index, minibatches),
            microbatches=self.rules.microbatches,
            start=segment.start,
            steady=self.rules.steady(minibatches),
            ports=self._ports,
            feed=self._feed(loader, segment),
            clipping=self.clipping,
            on_step=self.on_step,
            on_operation=self._on_operation,
        )
        began = time.perf_counter()
        while walker.next:
            walker.step()
        self._ports.end()
        computing = sum(self._stage.clock.take())
        return [1.0 - computing / (time.perf_counter() - began)]

    def _feed(self, loader: Loader, segment: Segment) -> LoaderFeed:
        first, last = self._stage.index == 0, self._stage.index == self.rules.stages - 1
        return LoaderFeed(loader, segment, self._stage.device, inputs=first, targets=last)

    def evaluate(self, loader: Loader) -> dict[str, float] | None:
        """Forward only, through the same connections; metrics on the last stage."""
        ports = self._ports
        if ports.activations_in is not None:
            ports.activations_in.expect(("evaluation", size) for size in loader.sizes)
        everything = Segment(epoch=0, first=0, last=len(loader), start=0)
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

    def gather(self, values: Sequence[Any]) -> list[Any]:
        """All stages' values, over the control group."""
        gathered: list[Any] = [None] * self.rules.stages
        with self._waiting("the reports of all stages"):
            dist.all_gather_object(gathered, values[0])
        return gathered

    def agree(self, value: Any) -> Any:
        """The last stage's value, over the control group."""
        box = [value]
        with self._waiting("the decision of the last stage"):
            dist.broadcast_object_list(box, src=self.rules.stages - 1)
        return box[0]


def _groups(stages: int, direct: bool) -> dict[tuple[int, bool], dist.ProcessGroup]:
    """(first stage of the pair, forward) -> group. Every process makes all of them, in one order, as torch requires."""
    if direct:
        return {
            (r, forward): dist.new_group([r, r + 1], timeout=NEVER, backend="nccl")
            for r in range(stages - 1)
            for forward in (True, False)
        }
    both = {forward: dist.new_group(timeout=NEVER, backend="gloo") for forward in (True, False)}
    return {(r, forward): both[forward] for r in range(stages - 1) for forward in (True, False)}


def _microbatch_keys(loader: Loader, segment: Segment, microbatches: int) -> dict[MicrobatchId, Key]:
    sizes: Iterable[int] = loader.sizes[segment.first : segment.last]
    return {
        (segment.start + t, j): samples
        for t, size in enumerate(sizes)
        for j, samples in enumerate(microbatch_sizes(size, microbatches))
    }


def _most_in_flight(operations: Sequence[Operation]) -> int:
    held = most = 0
    for operation in operations:
        held += {Kind.FORWARD: 1, Kind.BACKWARD: -1, Kind.UPDATE: 0}[operation.kind]
        most = max(most, held)
    return most
