"""All stages in one process: the same lists, the same stage code, the same bits as the distributed run."""

from collections import deque
from collections.abc import Callable, Sequence

from torch import Tensor

from pipetrain.data.loader import Loader
from pipetrain.executors.base import OneProcess
from pipetrain.executors.drain_interval import DrainInterval
from pipetrain.executors.evaluation import Score
from pipetrain.executors.feed import LoaderFeed, to_device
from pipetrain.executors.phase import Phase, PipelineRules
from pipetrain.executors.stage_runner import BackwardId, OnStep, StageRunner
from pipetrain.program.playback import Slice, idle_shares, play
from pipetrain.program.times import TimeSpan
from pipetrain.schedules import Kind, Operation
from pipetrain.stage.module import MicrobatchId
from pipetrain.stage.stage import Stage
from pipetrain.tensors import Tensors, dense_copy
from pipetrain.tracking.trace_writer import TraceFile


class _Norms:
    """The gradient norms that the stages offer, by minibatch."""

    def __init__(self, num_stages: int) -> None:
        self._stages = num_stages
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
        self.recomputed: deque[Tensors] = deque()
        self._stage = stage
        self._boxes = boxes
        self._norms = norms

    def receive_activations(self, microbatch: MicrobatchId) -> Tensors:
        return self.activations.popleft()

    def send_activations(self, microbatch: MicrobatchId, tensors: Tensors) -> None:
        self._boxes[self._stage + 1].activations.append(tuple(dense_copy(tensor) for tensor in tensors))

    def receive_gradients(self, microbatch: BackwardId) -> Tensors:
        return self.gradients.popleft()

    def send_gradients(self, microbatch: BackwardId, tensors: Tensors) -> None:
        self._boxes[self._stage - 1].gradients.append(tuple(dense_copy(tensor) for tensor in tensors))

    def receive_recomputed(self) -> Tensors:
        return self.recomputed.popleft()

    def send_recomputed(self, tensors: Tensors) -> None:
        self._boxes[self._stage + 1].recomputed.append(tuple(dense_copy(tensor) for tensor in tensors))

    def offer_norm(self, minibatch: int, own: Tensor) -> None:
        self._norms.offer(minibatch, self._stage, own)

    def norms(self, minibatch: int) -> list[Tensor]:
        return self._norms.of(minibatch)


class SimulatedExecutor(OneProcess):
    """Every stage in this process, walked in turn; idle shares come of playing their clocks against each other."""

    def __init__(
        self,
        stages: Sequence[Stage],
        phases: Sequence[Phase],
        clip_norm: float | None,
        on_step: OnStep,
        on_operation: Callable[[Operation], None] = lambda operation: None,
        trace: TraceFile | None = None,
    ) -> None:
        super().__init__(phases, clip_norm, on_step, trace)
        self._played_until = 0.0
        self.stages: list[Stage] = list(stages)
        self._on_operation = on_operation

    def train(self, loader: Loader, interval: DrainInterval) -> list[float]:
        """Carries out the interval; idle shares as they would be with every stage on a device of its own."""
        rules = self.enter(interval)
        norms = _Norms(len(self.stages))
        boxes: list[_Mailbox] = []
        boxes += [_Mailbox(stage.index, boxes, norms) for stage in self.stages]
        runners = [
            self._runner(stage, box, loader, interval, rules) for stage, box in zip(self.stages, boxes, strict=True)
        ]
        while any(runner.next for runner in runners):
            moved = False
            for runner, box in zip(runners, boxes, strict=True):
                while self._ready(runner, box, norms, rules):
                    runner.step()
                    moved = True
            assert moved, "validated lists cannot deadlock"
        played = self._played(rules, interval.minibatches)
        if self.trace is not None:
            self._write(self.trace, runners, played)
        return idle_shares(played)

    def _played(self, rules: PipelineRules, minibatches: int) -> list[list[Slice]]:
        """When each operation would have run with every stage on a device of its own, by the time that each took."""
        lists = rules.lists(minibatches)
        durations: dict[tuple[int, Operation], float] = {}
        for r, (stage, operations) in enumerate(zip(self.stages, lists, strict=True)):
            spans = stage.clock.take()
            durations.update({(r, op): span.seconds for op, span in zip(operations, spans, strict=True)})
        return play(lists, lambda r, op: durations[r, op], rules.segments)

    def _write(self, trace: TraceFile, runners: Sequence[StageRunner], played: Sequence[Sequence[Slice]]) -> None:
        for runner, slices in zip(runners, played, strict=True):
            spans = [TimeSpan(self._played_until + piece.start, piece.end - piece.start) for piece in slices]
            trace.add(runner.stage.index, runner.readings, spans, [], runner.start, runner.base)
        self._played_until += max(slices[-1].end for slices in played if slices)

    def _runner(
        self, stage: Stage, box: _Mailbox, loader: Loader, interval: DrainInterval, rules: PipelineRules
    ) -> StageRunner:
        last = len(self.stages) - 1
        return StageRunner(
            stage=stage,
            rules=rules,
            minibatches=interval.minibatches,
            start=interval.start,
            ports=box,
            feed=LoaderFeed(loader, interval, stage.device, inputs=stage.index == 0, targets=stage.index == last),
            clipping=self.clipping(rules),
            on_step=self.on_step,
            on_operation=self._on_operation,
        )

    def _ready(self, runner: StageRunner, box: _Mailbox, norms: _Norms, rules: PipelineRules) -> bool:
        operation, r = runner.next, runner.stage.index
        if operation is None:
            return False
        if operation.kind is Kind.FORWARD:
            return r == 0 or bool(box.activations)
        if operation.kind is Kind.RECOMPUTATION:
            repeated = len(operation.covers(rules.num_microbatches))
            return rules.segments is None or rules.segments.begins(r) or len(box.recomputed) >= repeated
        if operation.kind is Kind.BACKWARD:
            return r == len(self.stages) - 1 or bool(box.gradients)
        if runner.clipping is not None and runner.clipping.over_all_stages:
            runner.offer_norm()
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
                tensors = tuple(dense_copy(tensor) for tensor in stage.evaluate(tensors))
            score.add(tensors, to_device(targets, device))
        return score.metrics()
