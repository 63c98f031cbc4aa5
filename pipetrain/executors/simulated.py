"""All stages in one process: the same lists, the same stage code, the same bits as the distributed run."""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from pipetrain import wire
from pipetrain.data.loader import Loader
from pipetrain.executors.base import Executor, LoaderFeed, Rules, Score, Segment, to_device
from pipetrain.executors.walk import OnStep, Walker
from pipetrain.schedules import Kind, Operation
from pipetrain.schedules.timeline import idle_shares, play
from pipetrain.stage import Stage
from pipetrain.stage_module import MicrobatchId, Tensors


class _Norms:
    """The gradient norms that the stages offer, by minibatch."""

    def __init__(self, stages: int) -> None:
        self._stages = stages
        self._offered: dict[int, dict[int, Tensor]] = {}

    def offer(self, minibatch: int, stage: int, norm: Tensor) -> None:
        self._offered.setdefault(minibatch, {})[stage] = norm

    def complete(self, minibatch: int) -> bool:
        return len(self._offered.get(minibatch, {})) == self._stages

    def of(self, minibatch: int) -> list[Tensor]:
        return [norm for _, norm in sorted(self._offered[minibatch].items())]


class _Mailbox:
    """One stage's ports: what its neighbours put here, copied as a message would."""

    def __init__(self, stage: int, boxes: list["_Mailbox"], norms: _Norms) -> None:
        self.activations: deque[Tensors] = deque()
        self.gradients: deque[Tensors] = deque()
        self._stage = stage
        self._boxes = boxes
        self._norms = norms

    def receive_activations(self, microbatch: MicrobatchId) -> Tensors:
        return self.activations.popleft()

    def send_activations(self, microbatch: MicrobatchId, tensors: Tensors) -> None:
        self._boxes[self._stage + 1].activations.append(tuple(wire.copy(tensor) for tensor in tensors))

    def receive_gradients(self, microbatch: MicrobatchId) -> Tensors:
        return self.gradients.popleft()

    def send_gradients(self, microbatch: MicrobatchId, tensors: Tensors) -> None:
        self._boxes[self._stage - 1].gradients.append(tuple(wire.copy(tensor) for tensor in tensors))

    def offer_norm(self, minibatch: int, own: Tensor) -> None:
        self._norms.offer(minibatch, self._stage, own)

    def norms(self, minibatch: int) -> list[Tensor]:
        return self._norms.of(minibatch)


class SimulatedExecutor(Executor):
    """Every stage in this process, walked in turn; idle shares come of playing their clocks against each other."""

    def __init__(
        self,
        stages: Sequence[Stage],
        rules: Rules,
        clip_norm: float | None,
        on_step: OnStep,
        on_operation: Callable[[Operation], None] = lambda operation: None,
    ) -> None:
        super().__init__(rules, clip_norm, on_step)
        self.stages = list(stages)
        self._on_operation = on_operation

    def train(self, loader: Loader, segment: Segment) -> list[float]:
        """Carries out the segment; idle shares as they would be with every stage on a device of its own."""
        minibatches = segment.last - segment.first
        norms = _Norms(len(self.stages))
        boxes: list[_Mailbox] = []
        boxes += [_Mailbox(stage.index, boxes, norms) for stage in self.stages]
        walkers = [self._walker(stage, box, loader, segment) for stage, box in zip(self.stages, boxes, strict=True)]
        while any(walker.next for walker in walkers):
            moved = False
            for walker, box in zip(walkers, boxes, strict=True):
                while self._ready(walker, box, norms):
                    walker.step()
                    moved = True
            assert moved, "validated lists cannot deadlock"
        seconds = [stage.clock.take() for stage in self.stages]
        lists = self.rules.lists(minibatches)
        durations = {(r, op): s for r, ops in enumerate(lists) for op, s in zip(ops, seconds[r], strict=True)}
        return idle_shares(play(lists, lambda r, op: durations[r, op]))

    def _walker(self, stage: Stage, box: _Mailbox, loader: Loader, segment: Segment) -> Walker:
        minibatches = segment.last - segment.first
        last = len(self.stages) - 1
        return Walker(
            stage=stage,
            stages=len(self.stages),
            readings=self.rules.readings(stage.index, minibatches),
            microbatches=self.rules.microbatches,
            start=segment.start,
            steady=self.rules.steady(minibatches),
            ports=box,
            feed=LoaderFeed(loader, segment, stage.device, inputs=stage.index == 0, targets=stage.index == last),
            clipping=self.clipping,
            on_step=self.on_step,
            on_operation=self._on_operation,
        )

    def _ready(self, walker: Walker, box: _Mailbox, norms: _Norms) -> bool:
        operation = walker.next
        if operation is None:
            return False
        if operation.kind is Kind.FORWARD:
            return walker.stage.index == 0 or bool(box.activations)
        if operation.kind is Kind.BACKWARD:
            return walker.stage.index == len(self.stages) - 1 or bool(box.gradients)
        if self.clipping is not None and self.clipping.over_all_stages:
            walker.offer_norm()
            return norms.complete(operation.minibatch)
        return True

    def evaluate(self, loader: Loader) -> dict[str, float]:
        """Metrics over the whole evaluation set."""
        loss = self.stages[-1].loss
        assert loss is not None
        score = Score(loss)
        device = self.stages[0].device
        for inputs, targets in loader.samples(0):
            tensors = to_device(inputs, device)
            for stage in self.stages:
                tensors = tuple(wire.copy(tensor) for tensor in stage.evaluate(tensors))
            score.add(tensors, to_device(targets, device))
        return score.metrics()

    def gather(self, values: Sequence[Any]) -> list[Any]:
        """All stages are here."""
        return list(values)

    def agree(self, value: Any) -> Any:
        """The last stage is here."""
        return value
