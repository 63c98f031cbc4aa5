"""All stages in one process: the same lists, the same stage code, bit-identical to the distributed run."""

from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import zip_longest

from torch import Tensor
from typing_extensions import override

from pipetrain.engine.data.minibatches import Minibatches
from pipetrain.engine.errors import InvariantError
from pipetrain.engine.executors.base import IntervalTimes, OneProcess
from pipetrain.engine.executors.evaluation import evaluate_model
from pipetrain.engine.executors.hooks import RunHooks
from pipetrain.engine.executors.newest_gradients import NewestGradients
from pipetrain.engine.executors.pipeline_rules import Phase, PipelineRules
from pipetrain.engine.executors.read_cursor import ReadCursor
from pipetrain.engine.executors.replicas.averaging import Averaging, InProcessAveraging, Round
from pipetrain.engine.executors.replicas.exchange import InProcessExchange
from pipetrain.engine.executors.replicas.late_losses import LossExchange
from pipetrain.engine.executors.stage_runner import Ports, StageRunner
from pipetrain.engine.executors.tied_weights import TiedGradients
from pipetrain.engine.losses import NO_METRICS, Metrics
from pipetrain.engine.program.drain_interval import DrainInterval
from pipetrain.engine.program.playback import Slice, idle_shares, play, step_times
from pipetrain.engine.program.times import TimeSpan
from pipetrain.engine.schedules import Kind, Operation, Replicas
from pipetrain.engine.stage.module import BackwardId
from pipetrain.engine.stage.stage import Stage
from pipetrain.engine.tensors import Tensors, dense_copy


@dataclass(frozen=True)
class _Interval:
    """What the mailboxes of an interval share.

    Attributes:
        start: minibatches of the run before the interval.
        boxes: mailbox of each worker.
        norms: first minibatch of a round -> stage -> its squared gradient norm.
    """

    replicas: Replicas
    start: int
    tied: TiedGradients
    boxes: list["_Mailbox"] = field(default_factory=list)
    norms: defaultdict[int, dict[int, Tensor]] = field(default_factory=lambda: defaultdict(dict))


class _Mailbox(Ports):
    """Ports of one worker: its neighbors put copies of their tensors here, as messages would."""

    def __init__(
        self, stage: int, interval: _Interval, averaging: Averaging | None, losses: LossExchange | None
    ) -> None:
        self.tied = interval.tied
        self.averaging = averaging
        self.losses = losses
        self.messages: dict[tuple[Kind, BackwardId], Tensors] = {}
        self._stage = stage
        self._interval = interval

    @override
    def receive(self, kind: Kind, microbatch: BackwardId) -> Tensors:
        return self.messages.pop((kind, microbatch))

    @override
    def send(self, kind: Kind, microbatch: BackwardId, tensors: Tensors) -> None:
        target, minibatch = self._stage + (-1 if kind is Kind.BACKWARD else 1), microbatch[0] - self._interval.start
        box = self._interval.boxes[self._interval.replicas.worker(target, minibatch)]
        box.messages[kind, microbatch] = tuple(map(dense_copy, tensors))

    @override
    def norms(self, this: Round, norm: Tensor) -> list[Tensor] | None:
        interval, norms = self._interval, self._interval.norms[this.first]
        norms[self._stage] = norm  # the same from each replica
        if len(norms) < len(interval.replicas.counts):
            return None
        for first in [first for first in interval.norms if first < this.first]:
            del interval.norms[first]  # all stages have updated since
        return [norms[stage] for stage in sorted(norms)]


class SimulatedExecutor(OneProcess):
    """All stages in this process, in turns; idle shares follow from replaying their measured times."""

    def __init__(
        self, stages: Sequence[Stage], phases: Sequence[Phase], hooks: RunHooks, clip_norm: float | None = None
    ) -> None:
        super().__init__(stages, phases, hooks, clip_norm)
        self._played_until = 0.0
        self.stages: list[Stage] = list(stages)
        if self.replicas.train_alone:
            exchanges = [each for count in self.replicas.counts for each in InProcessExchange.of_all(count)]
            for stage, exchange in zip(stages, exchanges, strict=True):
                stage.average_through(exchange)

    @override
    def train(self, loader: Minibatches, interval: DrainInterval) -> IntervalTimes:
        rules = self.enter(interval)
        boxes = self._mailboxes(rules.replicas, interval.start)
        runners = []
        for stage, box in zip(self.stages, boxes, strict=True):
            cursor, feed = ReadCursor(stage, rules, interval), self.feed(loader, interval, [stage])
            if stage.messages is not None:
                stage.messages.begin(loader, interval, rules.num_microbatches)
            runners.append(StageRunner(cursor, box, feed, self.clip_norm, self.hooks))
        begun = self.hooks.gate.begun
        gradients = NewestGradients(
            self.stages, loader.without_workers(), self._uploads, interval, rules.num_microbatches
        )
        self._run(runners, boxes, begun, gradients)
        deque(zip_longest(*(runner.settle() for runner in runners)), maxlen=0)  # in step with each other
        ended_after = self.hooks.gate.ended_after
        minibatches = interval.minibatches if ended_after is None else ended_after - begun
        firsts = {stage.index: stage for stage in self.stages if stage.replica == 0}
        for stage in self.stages:
            if stage.replica:
                stage.take_buffers(firsts[stage.index].buffers)
        if not minibatches:
            return IntervalTimes([None] * len(self.stages))
        played = self._played(rules, minibatches, runners)
        self._trace(interval.ended_after(minibatches), runners, played)
        at_once = rules.method.independent_replicas
        placement = rules.placement if rules.placement.several else None
        return IntervalTimes(idle_shares(played, placement), [seconds / at_once for seconds in step_times(played)])

    def _mailboxes(self, replicas: Replicas, start: int) -> list[_Mailbox]:
        tied = TiedGradients(self.stages[0].ties, [stage.index for stage in self.stages])
        interval = _Interval(replicas, start, tied)
        rounds = {
            stage.index: InProcessAveraging(stage.weights.trainable, replicas.counts[stage.index])
            for stage in self.stages
            if stage.replica == 0 and replicas.counts[stage.index] > 1 and not replicas.train_alone
        }
        losses: list[LossExchange | None] = [None] * len(self.stages)
        if replicas.train_alone:
            last = replicas.counts[-1]
            losses[-last:] = map(LossExchange, InProcessExchange.of_all(last), InProcessExchange.of_all(last))
        for stage, of_losses in zip(self.stages, losses, strict=True):
            interval.boxes.append(_Mailbox(stage.index, interval, rounds.get(stage.index), of_losses))
        return interval.boxes

    def _run(
        self, runners: Sequence[StageRunner], boxes: Sequence[_Mailbox], begun: int, gradients: NewestGradients
    ) -> None:
        """Runs all lists, each as far as its inputs allow: through the stages with the data, then against it."""
        opened = 0
        """Minibatches that the first stage has asked the gate for."""
        down = list(zip(runners, boxes, strict=True))
        while any(runner.next for runner in runners):
            moved = False
            for runner, box in (*down, *reversed(down)):
                while (operation := self._next(runner, box)) is not None:
                    moved = True
                    ahead = operation.minibatch + 1 - opened if runner.stage.index == 0 else 0
                    opened += max(0, ahead)
                    if ahead <= 0 or self.hooks.gate.admits(ahead):
                        runner.step()
                    else:
                        self._end(runners, begun)
                    gradients.compare()
            if not moved:
                raise InvariantError("no stage can carry out its next operation, although the lists were validated")

    def _end(self, runners: Sequence[StageRunner], begun: int) -> None:
        """Shortens all lists to the minibatches that the gate has admitted."""
        ended_after = self.hooks.gate.ended_after
        assert ended_after is not None
        for runner in runners:
            runner.cursor.end_before(ended_after - begun)

    @staticmethod
    def _next(runner: StageRunner, box: _Mailbox) -> Operation | None:
        """The next operation of a list if its inputs are there, else None."""
        operation = runner.next
        if operation is None or not runner.bring_in():
            return None
        if operation.kind is Kind.UPDATE:
            return operation if runner.ready_to_update() else None
        ready = all((operation.kind, message) in box.messages for message in runner.awaited(operation))
        return operation if ready else None

    def _played(self, rules: PipelineRules, minibatches: int, runners: Sequence[StageRunner]) -> list[list[Slice]]:
        """Start and end of each operation if every process had its own device, from the measured durations."""
        lists = [[planned.operation for planned in runner.cursor.planned] for runner in runners]
        durations: dict[tuple[int, Operation], float] = {}
        for r, (stage, operations) in enumerate(zip(self.stages, lists, strict=True)):
            spans = stage.clock.take()
            durations.update({(r, op): span.seconds for op, span in zip(operations, spans, strict=True)})
        orders = rules.orders(minibatches)
        return play(
            lists, lambda worker, op: durations[worker, op], rules.segments, replicas=rules.replicas, orders=orders
        )

    def _trace(
        self, interval: DrainInterval, runners: Sequence[StageRunner], played: Sequence[Sequence[Slice]]
    ) -> None:
        """Writes the lists with their replayed times; each interval starts where the previous one ended."""
        if self.hooks.trace is None:
            return
        spans = [
            [TimeSpan(self._played_until + piece.start, piece.end - piece.start) for piece in slices]
            for slices in played
        ]
        lists = [runner.cursor.traced(each) for runner, each in zip(runners, spans, strict=True)]
        self.hooks.trace.add(interval, lists)
        self._played_until += max(slices[-1].end for slices in played if slices)

    @override
    def evaluate(self, loader: Minibatches, metrics: Metrics = NO_METRICS) -> dict[str, float]:
        loss = self.stages[-1].loss
        assert loss is not None
        parts = self.evaluated_parts(len(loader))
        return evaluate_model(loader, self._outputs, loss, self._uploads, metrics, parts)

    def _outputs(self, tensors: Tensors) -> Tensors:
        for stage in self.stages:
            if stage.replica == 0:  # further replicas would compute the same
                tensors = stage.evaluate(tensors)
                if stage.index != self.stages[-1].index:
                    tensors = tuple(map(dense_copy, tensors))
        return tensors
