"""The operations and messages of a pipeline in its steady state, as events that repeat every turn."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count, pairwise, product
from typing import NamedTuple

import numpy as np

from pipetrain.program.event_graph import EventGraph
from pipetrain.program.recomputation import RecomputeSegments, Routes
from pipetrain.program.times import StageTimes
from pipetrain.schedules.operation import Kind, Operation


@dataclass(frozen=True)
class Replication:
    """Replication of each stage: minibatch t goes to replica t mod m (PipeDream § 3.2).

    Attributes:
        replicas: m, by stage.
        averaging: the time in which a stage's replicas average their gradients before an update, by stage.
        overlapped: True if that begins with the backwards that the update waits for, and not after them.
    """

    replicas: Sequence[int]
    averaging: Sequence[float]
    overlapped: bool = False

    @classmethod
    def none(cls, num_stages: int) -> "Replication":
        """One device for each stage."""
        return cls([1] * num_stages, [0.0] * num_stages)

    @property
    def turn(self) -> int:
        """After so many minibatches all stages have taken whole rounds."""
        return math.lcm(*self.replicas)


@dataclass(frozen=True)
class SteadyPipeline:
    """A pipeline in its steady state.

    A turn is as many minibatches as all stages take whole rounds of: one without replicas. A link carries one message
    at a time in each direction, in the order in which its sender makes them and its receiver takes them.

    Attributes:
        cycles: for each stage, what each of its replicas does from one of its updates to the next
            (`ListSchedule.steady_cycle`).
        times: of operations and messages.
        replication: of the stages.
        segments: which of them recompute together, if any recompute.
    """

    cycles: Sequence[Sequence[Operation]]
    times: StageTimes
    replication: Replication
    segments: RecomputeSegments | None = None

    def events(self) -> EventGraph:
        """Event graph of one turn; the first guess is that every operation waits for its input."""
        weaver = _GraphBuilder(self)
        for r in range(len(self.cycles)):
            weaver.order_operations(r)
        for r in range(len(self.cycles)):
            weaver.pass_messages(r)
        edges = sorted([*weaver.orders, *weaver.inputs], key=lambda edge: edge.target)
        targets, sources, times, turns = (np.array(column) for column in zip(*edges, strict=True))
        last_edges = np.searchsorted(targets, np.arange(targets[-1] + 1), side="right") - 1
        return EventGraph(sources, targets, times.astype(float), turns, last_edges)


class _Edge(NamedTuple):
    """`target` starts at least `time` after `source` did `turns` turns before."""

    target: int
    source: int
    time: float
    turns: int


class _Point(NamedTuple):
    """A time after the start of an event."""

    event: int
    later: float


class _Span(NamedTuple):
    """An operation or message.

    Attributes:
        begin: the event of its start.
        end: what waits for it starts then.
        free: its device or link takes the next one then; until then a device may read data.
        ahead: how many turns its minibatch is ahead of those that its device ends in the same turn.
    """

    begin: int
    end: _Point
    free: _Point
    ahead: int = 0


_Name = tuple[Kind, int, int | None]
"""(kind, minibatch modulo the minibatches of a turn, microbatch) of an operation."""


class _GraphBuilder:
    """Builds the edges of a pipeline's event graph.

    Attributes:
        orders: what a device or a link does one after the other.
        inputs: what waits for a message or an average.
    """

    def __init__(self, pipeline: SteadyPipeline) -> None:
        self.orders: list[_Edge] = []
        self.inputs: list[_Edge] = []
        self._pipeline = pipeline
        self._routes = Routes(len(pipeline.cycles), pipeline.segments)
        self._numbers = count()
        self._lanes: list[list[dict[_Name, _Span]]] = []
        """By stage and replica, the operations in order."""

    def order_operations(self, r: int) -> None:
        """Adds edges so that replicas of a stage run their operations in order, and average their gradients."""
        replicas = self._pipeline.replication.replicas[r]
        lanes = [self._lane(r, replica, replicas) for replica in range(replicas)]
        self._lanes.append(lanes)
        for lane in lanes:
            self._in_order([(operation, 0) for operation in lane.values()])
        if replicas > 1:
            self._average(r, lanes)

    def _lane(self, r: int, replica: int, replicas: int) -> dict[_Name, _Span]:
        turn, times = self._pipeline.replication.turn, self._pipeline.times
        lane: dict[_Name, _Span] = {}
        for first in range(replica, turn, replicas):
            for op in self._pipeline.cycles[r]:
                ahead, minibatch = divmod(first + op.minibatch * replicas, turn)
                begin, duration = next(self._numbers), times.duration(r, op)
                free = _Point(begin, duration + times.reading(r, op))
                lane[op.kind, minibatch, op.microbatch] = _Span(begin, _Point(begin, duration), free, ahead)
        return lane

    def _average(self, r: int, lanes: Sequence[dict[_Name, _Span]]) -> None:
        """The updates of a round wait for the backwards of all replicas, and for their average."""
        replication = self._pipeline.replication
        for of_round in zip(*(self._ends(lane) for lane in lanes), strict=True):
            average = next(self._numbers)
            for backward, update in of_round:
                ready = _Point(backward.begin, 0.0) if replication.overlapped else backward.end
                self.inputs.append(_Edge(average, ready.event, ready.later, 0))
                self.inputs.append(_Edge(update.begin, average, replication.averaging[r], 0))

    @staticmethod
    def _ends(lane: dict[_Name, _Span]) -> list[tuple[_Span, _Span]]:
        """The last backward before each update, and the update."""
        return [(before, span) for (_, before), (name, span) in pairwise(lane.items()) if name[0] is Kind.UPDATE]

    def pass_messages(self, r: int) -> None:
        """Adds edges from messages to the operations that wait for them, and between messages of one kind, in order."""
        for sender in (r - 1, r + 1):
            if 0 <= sender < len(self._lanes):
                messages = self._take(sender, r)
                for lane, kind in product(self._lanes[sender], Kind):
                    self._in_order([(messages[name], 0) for name in lane if name[0] is kind and name in messages])

    def _take(self, sender: int, r: int) -> dict[_Name, _Span]:
        """Adds the messages between two stages; returns those that occupy their link for some time."""
        made = {name: span for lane in self._lanes[sender] for name, span in lane.items()}
        messages: dict[_Name, _Span] = {}
        for lane in self._lanes[r]:
            taken: dict[Kind, list[tuple[_Span, int]]] = {}
            for name, target in lane.items():
                op = Operation(*name)
                if self._routes.sender(r, op) != sender:
                    continue
                ready, late = made[name].end, made[name].ahead - target.ahead
                transfer = self._pipeline.times.transfer(sender, r, op)
                occupation = self._pipeline.times.occupation(sender, r, op)
                if not occupation:
                    self.inputs.append(_Edge(target.begin, ready.event, ready.later + transfer, late))
                    continue
                messages[name] = message = self._message(occupation)
                self.inputs.append(_Edge(message.begin, ready.event, ready.later, 0))
                self.inputs.append(_Edge(target.begin, message.begin, transfer, late))
                taken.setdefault(op.kind, []).append((message, late))
            if len(self._lanes[sender]) > 1:
                for of_kind in taken.values():
                    self._in_order(of_kind)
        return messages

    def _message(self, occupation: float) -> _Span:
        begin = next(self._numbers)
        free = _Point(begin, occupation)
        return _Span(begin, free, free)

    def _in_order(self, spans: Sequence[tuple[_Span, int]]) -> None:
        """Adds edges so that spans follow one another, turn by turn; each comes with the turns by which it is late."""
        if not spans:
            return
        for (span, late), (following, later) in pairwise(spans):
            self.orders.append(_Edge(following.begin, span.free.event, span.free.later, late - later))
        (first, early), (last, late) = spans[0], spans[-1]
        self.orders.append(_Edge(first.begin, last.free.event, last.free.later, late - early + 1))
