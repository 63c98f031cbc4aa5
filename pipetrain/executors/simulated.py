"""All stages in one process: the same lists, the same stage code, bit-identical to the distributed run."""

from collections import deque
from collections.abc import Mapping, Sequence

from torch import Tensor
from typing_extensions import override

from pipetrain.data.loader import Loader
from pipetrain.executors.base import IntervalTimes, OneProcess
from pipetrain.executors.evaluation import evaluate_model
from pipetrain.executors.hooks import RunHooks
from pipetrain.executors.phase import Phase, PipelineRules
from pipetrain.executors.read_cursor import ReadCursor
from pipetrain.executors.stage_runner import BackwardId, StageRunner
from pipetrain.executors.tied_gradients import TiedGradients
from pipetrain.program.drain_interval import DrainInterval
from pipetrain.program.playback import Slice, idle_shares, play, step_times
from pipetrain.program.times import TimeSpan
from pipetrain.schedules import Kind, Operation
from pipetrain.stage.module import MicrobatchId
from pipetrain.stage.stage import Stage
from pipetrain.tensors import Tensors, dense_copy
from pipetrain.tracking.trace_writer import TracedList, TraceFile

_NO_HOOKS = RunHooks()


class _Mailbox:
    """One stage's ports: what its neighbors put here, copied as a message would be.

    Args:
        stage: whose.
        boxes: of all stages.
        tied: what all stages offer of weights that they share.
    """

    def __init__(self, stage: int, boxes: list["_Mailbox"], tied: TiedGradients) -> None:
        self.activations: deque[Tensors] = deque()
        self.gradients: deque[Tensors] = deque()
        self.recomputed: deque[Tensors] = deque()
        self._stage = stage
        self._boxes = boxes
        self._tied = tied
        self._offered: list[Tensor] = []
        self._norms_read = 0

    def receive_activations(self) -> Tensors:
        return self.activations.popleft()

    def send_activations(self, _: MicrobatchId, tensors: Tensors) -> None:
        self._boxes[self._stage + 1].activations.append(_copied(tensors))

    def receive_gradients(self) -> Tensors:
        return self.gradients.popleft()

    def send_gradients(self, _: BackwardId, tensors: Tensors) -> None:
        self._boxes[self._stage - 1].gradients.append(_copied(tensors))

    def receive_recomputed(self) -> Tensors:
        return self.recomputed.popleft()

    def send_recomputed(self, tensors: Tensors) -> None:
        self._boxes[self._stage + 1].recomputed.append(_copied(tensors))

    def offer_norm(self, norm: Tensor) -> None:
        self._offered.append(norm)

    def norms_are_complete(self) -> bool:
        return all(len(box._offered) > self._norms_read for box in self._boxes)

    def norms(self) -> list[Tensor]:
        self._norms_read += 1
        return [box._offered[self._norms_read - 1] for box in self._boxes]

    def offer_tied(self, gradients: Mapping[str, Tensor]) -> None:
        self._tied.offer(self._stage, gradients)

    def tied_totals_are_complete(self) -> bool:
        return self._tied.complete(self._stage)

    def tied_totals(self) -> dict[str, Tensor]:
        return self._tied.totals(self._stage)


def _copied(tensors: Tensors) -> Tensors:
    return tuple(dense_copy(tensor) for tensor in tensors)


class SimulatedExecutor(OneProcess):
    """Every stage in this process, walked in turn; idle shares come of playing their clocks against each other.

    Args:
        stages: all of them, in order.
        phases: of the run.
        hooks: who is told what happens.
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
        boxes: list[_Mailbox] = []
        tied = TiedGradients(self.stages[0].ties, [stage.index for stage in self.stages])
        boxes += [_Mailbox(stage.index, boxes, tied) for stage in self.stages]
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
        self._run(runners, boxes)
        minibatches = sum(each.operation.kind is Kind.UPDATE for each in runners[0].cursor.planned)
        if not minibatches:
            return IntervalTimes([None] * len(self.stages))
        played = self._played(rules, minibatches)
        if self.hooks.trace is not None:
            self._write(self.hooks.trace, interval, runners, played)
        return IntervalTimes(idle_shares(played), step_times(played))

    def _run(self, runners: Sequence[StageRunner], boxes: Sequence[_Mailbox]) -> None:
        """Carries out all lists; each stage as far as it gets, then the next one."""
        while any(runner.next for runner in runners):
            moved = False
            for runner, box in zip(runners, boxes, strict=True):
                while self._ready(runner, box):
                    if runner is runners[0] and runner.cursor.opens and not self.hooks.gate.passes():
                        self._end(runners)
                    else:
                        runner.step()
                    moved = True
            assert moved, "validated lists cannot deadlock"

    @staticmethod
    def _end(runners: Sequence[StageRunner]) -> None:
        """Ends all lists before the minibatch that the first stage would begin, as no other stage has begun it."""
        assert runners[0].next is not None
        minibatch = runners[0].next.minibatch
        for runner in runners:
            runner.cursor.end_before(minibatch)

    def _ready(self, runner: StageRunner, box: _Mailbox) -> bool:
        operation, r, rules = runner.next, runner.stage.index, runner.cursor.rules
        if operation is None:
            return False
        if operation.kind is Kind.FORWARD:
            return r == 0 or bool(box.activations)
        if operation.kind is Kind.RECOMPUTATION:
            repeated = len(operation.covers(rules.num_microbatches))
            return rules.segments is None or rules.segments.begins(r) or len(box.recomputed) >= repeated
        if operation.kind is Kind.BACKWARD:
            return r == self.num_stages - 1 or bool(box.gradients)
        runner.offer_tied()
        if not (runner.summed_tied or box.tied_totals_are_complete()):
            return False
        if runner.asks_all:
            runner.offer_norm()
            return box.norms_are_complete()
        return True

    def _played(self, rules: PipelineRules, minibatches: int) -> list[list[Slice]]:
        """When each operation would have run with every stage on a device of its own, by the time that each took."""
        lists = rules.lists(minibatches)
        durations: dict[tuple[int, Operation], float] = {}
        for r, (stage, operations) in enumerate(zip(self.stages, lists, strict=True)):
            spans = stage.clock.take()
            durations.update({(r, op): span.seconds for op, span in zip(operations, spans, strict=True)})
        return play(lists, lambda r, op: durations[r, op], rules.segments)

    def _write(
        self,
        trace: TraceFile,
        interval: DrainInterval,
        runners: Sequence[StageRunner],
        played: Sequence[Sequence[Slice]],
    ) -> None:
        """Writes the lists as they were played, each interval behind the one before."""
        lists = []
        for runner, slices in zip(runners, played, strict=True):
            spans = [TimeSpan(self._played_until + piece.start, piece.end - piece.start) for piece in slices]
            cursor = runner.cursor
            lists.append(TracedList(cursor.stage.index, cursor.planned, cursor.start, cursor.base, spans))
        trace.add(interval, lists)
        self._played_until += max(slices[-1].end for slices in played if slices)

    @override
    def evaluate(self, loader: Loader) -> dict[str, float]:
        self.begin_evaluation()
        loss = self.stages[-1].loss
        assert loss is not None
        return evaluate_model(loader, self._outputs, loss, self.stages[0].device)

    def _outputs(self, tensors: Tensors) -> Tensors:
        for stage in self.stages:
            tensors = _copied(stage.evaluate(tensors))
        return tensors
