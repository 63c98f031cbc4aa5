"""All stages in one process: the same lists, the same stage code, bit-identical to the distributed run."""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor
from typing_extensions import override

from pipetrain.data.loader import Loader
from pipetrain.executors.base import IntervalTimes, OneProcess
from pipetrain.executors.evaluation import evaluate_model
from pipetrain.executors.hooks import RunHooks
from pipetrain.executors.pipeline_rules import Phase, PipelineRules
from pipetrain.executors.read_cursor import ReadCursor
from pipetrain.executors.replicas.averaging import AveragedGradients, InProcessAveraging, LocalGradients, Round
from pipetrain.executors.stage_runner import BackwardId, StageRunner
from pipetrain.executors.tied_weights import TiedGradients
from pipetrain.losses import NO_METRICS, Metrics
from pipetrain.program.drain_interval import DrainInterval
from pipetrain.program.playback import Slice, idle_shares, play, step_times
from pipetrain.program.times import TimeSpan
from pipetrain.schedules import Kind, Operation, Replicas
from pipetrain.stage.module import MicrobatchId
from pipetrain.stage.stage import Stage
from pipetrain.tensors import Tensors, dense_copy
from pipetrain.tracking.trace_writer import TracedList, TraceFile

_NO_HOOKS = RunHooks()


@dataclass(frozen=True)
class _Boxes:
    """The mailboxes of an interval.

    Attributes:
        replicas: of each stage.
        start: minibatches of the run before the interval.
        of_workers: one for each.
        rounds: averaging over the replicas of each stage.
        tied: gradients of weights that stages share.
    """

    replicas: Replicas
    start: int
    of_workers: list["_Mailbox"]
    rounds: Sequence[InProcessAveraging]
    tied: TiedGradients

    def of(self, stage: int, minibatch: int) -> "_Mailbox":
        """Mailbox of the worker that a minibatch of the run goes to."""
        return self.of_workers[self.replicas.worker(stage, minibatch - self.start)]

    @property
    def of_stages(self) -> list["_Mailbox"]:
        """Mailboxes of the first replica of each stage."""
        return [self.of_workers[workers[0]] for workers in map(self.replicas.workers_of, range(len(self.rounds)))]


class _Mailbox:
    """Ports of one worker: its neighbors put copies of their tensors here, as messages would.

    Args:
        stage: the worker's stage.
        boxes: of all workers.
    """

    def __init__(self, stage: Stage, boxes: _Boxes) -> None:
        self.activations: dict[MicrobatchId, Tensors] = {}
        self.gradients: dict[BackwardId, Tensors] = {}
        self.recomputed: deque[Tensors] = deque()
        self._stage = stage.index
        self._replica = stage.replica
        self._boxes = boxes
        self._offered: list[Tensor] = []
        self._norms_read = 0

    def receive_activations(self, microbatch: MicrobatchId) -> Tensors:
        return self.activations.pop(microbatch)

    def send_activations(self, microbatch: MicrobatchId, tensors: Tensors) -> None:
        self._boxes.of(self._stage + 1, microbatch[0]).activations[microbatch] = _copied(tensors)

    def receive_gradients(self, microbatch: BackwardId) -> Tensors:
        return self.gradients.pop(microbatch)

    def send_gradients(self, microbatch: BackwardId, tensors: Tensors) -> None:
        self._boxes.of(self._stage - 1, microbatch[0]).gradients[microbatch] = _copied(tensors)

    def receive_recomputed(self) -> Tensors:
        return self.recomputed.popleft()

    def send_recomputed(self, tensors: Tensors) -> None:
        # segments of several stages have no replicas
        self._boxes.of_workers[self._stage + 1].recomputed.append(_copied(tensors))

    def put_gradient(self, name: str, gradient: Tensor) -> None:
        """Does nothing: `offer_round` passes all gradients together."""

    def offer_round(self, this: Round, found: LocalGradients) -> None:
        self._boxes.rounds[self._stage].offer(this, self._replica, found)

    def round_is_complete(self, this: Round) -> bool:
        return self._boxes.rounds[self._stage].complete(this)

    def found(self, this: Round) -> AveragedGradients:
        return self._boxes.rounds[self._stage].take(this)

    def offer_norm(self, norm: Tensor) -> None:
        self._offered.append(norm)

    def norms_are_complete(self) -> bool:
        return all(len(box._offered) > self._norms_read for box in self._boxes.of_stages)

    def norms(self) -> list[Tensor]:
        self._norms_read += 1
        return [box._offered[self._norms_read - 1] for box in self._boxes.of_stages]

    def offer_tied(self, gradients: Mapping[str, Tensor]) -> None:
        self._boxes.tied.offer(self._stage, gradients)

    def tied_totals_are_complete(self) -> bool:
        return self._boxes.tied.complete(self._stage)

    def tied_totals(self) -> dict[str, Tensor]:
        return self._boxes.tied.totals(self._stage)


def _copied(tensors: Tensors) -> Tensors:
    return tuple(dense_copy(tensor) for tensor in tensors)


class SimulatedExecutor(OneProcess):
    """All stages in this process, which take turns; idle shares follow from replaying their measured times.

    Args:
        stages: all of them, in order.
        phases: of the run.
        hooks: callbacks of the run.
        clip_norm: the largest norm of a gradient; None for no clipping.
    """

    def __init__(
        self,
        stages: Sequence[Stage],
        phases: Sequence[Phase],
        hooks: RunHooks = _NO_HOOKS,
        clip_norm: float | None = None,
    ) -> None:
        super().__init__(phases, hooks, clip_norm)
        self._played_until = 0.0
        self.stages: list[Stage] = list(stages)

    @override
    def train(self, loader: Loader, interval: DrainInterval) -> IntervalTimes:
        rules = self.enter(interval)
        boxes = self._boxes(rules.replicas, interval.start)
        runners = [
            StageRunner(
                ReadCursor(stage, rules, interval),
                box,
                self.feed(loader, interval, [stage]),
                self.clipping(rules),
                self.hooks,
            )
            for stage, box in zip(self.stages, boxes, strict=True)
        ]
        begun = self.hooks.gate.begun
        self._run(runners, boxes, begun)
        ended_after = self.hooks.gate.ended_after
        minibatches = interval.minibatches if ended_after is None else ended_after - begun
        self._drain()
        if not minibatches:
            return IntervalTimes([None] * len(self.stages))
        played = self._played(rules, minibatches)
        if self.hooks.trace is not None:
            self._write(self.hooks.trace, interval.ended_after(minibatches), runners, played)
        at_once = rules.method.independent_replicas
        return IntervalTimes(idle_shares(played), [seconds / at_once for seconds in step_times(played)])

    def _boxes(self, replicas: Replicas, start: int) -> list[_Mailbox]:
        tied = TiedGradients(self.stages[0].ties, [stage.index for stage in self.stages])
        firsts = [stage for stage in self.stages if stage.replica == 0]
        rounds = [InProcessAveraging(stage.weights.trainable, replicas.counts[stage.index]) for stage in firsts]
        boxes = _Boxes(replicas, start, [], rounds, tied)
        boxes.of_workers.extend(_Mailbox(stage, boxes) for stage in self.stages)
        return boxes.of_workers

    def _drain(self) -> None:
        """Gives all replicas of a stage the buffers of its first replica."""
        firsts = {stage.index: stage for stage in self.stages if stage.replica == 0}
        for stage in self.stages:
            if stage.replica:
                stage.take_buffers(firsts[stage.index].buffers)

    def _run(self, runners: Sequence[StageRunner], boxes: Sequence[_Mailbox], begun: int) -> None:
        """Runs all lists: each stage as far as its inputs allow, then the next stage."""
        gate, opened = self.hooks.gate, 0
        while any(runner.next for runner in runners):
            moved = False
            for runner, box in zip(runners, boxes, strict=True):
                while self._ready(runner, box):
                    assert runner.next is not None
                    ahead = runner.next.minibatch + 1 - opened if runner.stage.index == 0 else 0
                    opened += max(0, ahead)
                    if ahead > 0 and not gate.admits(ahead):
                        assert gate.ended_after is not None
                        self._end(runners, gate.ended_after - begun)
                    else:
                        runner.step()
                    moved = True
            assert moved, "validated lists cannot deadlock"

    @staticmethod
    def _end(runners: Sequence[StageRunner], minibatch: int) -> None:
        """Ends all lists before a minibatch that none has begun."""
        for runner in runners:
            runner.cursor.end_before(minibatch)

    def _ready(self, runner: StageRunner, box: _Mailbox) -> bool:
        operation, r, rules, start = runner.next, runner.stage.index, runner.cursor.rules, runner.cursor.start
        if operation is None:
            return False
        if operation.kind is Kind.FORWARD:
            return r == 0 or (start + operation.minibatch, operation.microbatch) in box.activations
        if operation.kind is Kind.RECOMPUTATION:
            repeated = len(operation.covers(rules.num_microbatches))
            return rules.segments is None or rules.segments.begins(r) or len(box.recomputed) >= repeated
        if operation.kind is Kind.BACKWARD:
            return r == self.num_stages - 1 or (start + operation.minibatch, operation.microbatch) in box.gradients
        runner.offer_tied()
        if not (runner.has_summed_tied or box.tied_totals_are_complete()):
            return False
        runner.offer_round()
        if not (runner.has_averaged or box.round_is_complete(runner.round)):
            return False
        if runner.needs_global_norm:
            runner.offer_norm()
            return box.norms_are_complete()
        return True

    def _played(self, rules: PipelineRules, minibatches: int) -> list[list[Slice]]:
        """Start and end of each operation if every stage had its own device, from the measured durations."""
        lists = rules.lists(minibatches)
        durations: dict[tuple[int, Operation], float] = {}
        for r, (stage, operations) in enumerate(zip(self.stages, lists, strict=True)):
            spans = stage.clock.take()
            durations.update({(r, op): span.seconds for op, span in zip(operations, spans, strict=True)})
        return play(lists, lambda worker, op: durations[worker, op], rules.segments, replicas=rules.replicas)

    def _write(
        self,
        trace: TraceFile,
        interval: DrainInterval,
        runners: Sequence[StageRunner],
        played: Sequence[Sequence[Slice]],
    ) -> None:
        """Writes the lists with their replayed times; each interval starts where the previous one ended."""
        lists = []
        for runner, slices in zip(runners, played, strict=True):
            spans = [TimeSpan(self._played_until + piece.start, piece.end - piece.start) for piece in slices]
            cursor = runner.cursor
            replicas = self.replicas.counts[cursor.stage.index]
            lists.append(TracedList(cursor.worker, cursor.planned, cursor.start, cursor.base, spans, (), replicas))
        trace.add(interval, lists)
        self._played_until += max(slices[-1].end for slices in played if slices)

    @override
    def evaluate(self, loader: Loader, metrics: Metrics = NO_METRICS) -> dict[str, float]:
        self.begin_evaluation()
        loss = self.stages[-1].loss
        assert loss is not None
        parts = self.evaluated_parts(len(loader))
        return evaluate_model(loader, self._outputs, loss, self.stages[0].device, metrics, parts)

    def _outputs(self, tensors: Tensors) -> Tensors:
        for stage in self.stages:
            if stage.replica:
                continue  # what the first one computes, they would
            tensors = _copied(stage.evaluate(tensors))
        return tensors
