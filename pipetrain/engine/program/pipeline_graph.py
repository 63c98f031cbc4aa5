"""The operations and messages of a pipeline in its steady state, as events that repeat every turn."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count, pairwise, product
from typing import NamedTuple

import numpy as np

from pipetrain.engine.program.event_graph import EventGraph
from pipetrain.engine.program.recomputation import RecomputeSegments, sender_of
from pipetrain.engine.program.times import StageTimes
from pipetrain.engine.schedules.operation import Kind, Operation
from pipetrain.engine.schedules.placement import Placement


@dataclass(frozen=True)
class SteadyPipeline:
    """A pipeline in its steady state.

    Minibatch t goes to replica t mod m of a stage (PipeDream § 3.2). A turn is the least number of minibatches that is
    a whole number of rounds of every stage: one without replicas. A link carries one message at a time in each
    direction, in the order in which its sender makes them and its receiver takes them.

    Attributes:
        cycles: for each stage, the operations of each replica from one of its updates to the next
            (`ListSchedule.steady_cycle`).
        replicas: m of each stage.
        averaging: seconds in which the replicas of each stage average their gradients before an update.
        ties: the stages that hold a weight together, and the seconds in which each of them sends its gradient to the
            rest before an update.
        overlapped: True if averaging begins with the backwards that the update waits for, and not after them.
        segments: the stages that recompute together; None if none recomputes.
        orders: for each process, if some have several stages, (stage, operation) from one of its updates to the next,
            with all minibatches counted from the same one (`PipelineRules.steady_orders`); () if each has one.
    """

    cycles: Sequence[Sequence[Operation]]
    times: StageTimes
    replicas: Sequence[int]
    averaging: Sequence[float]
    ties: Sequence[tuple[Sequence[int], float]] = ()
    overlapped: bool = False
    segments: RecomputeSegments | None = None
    orders: Sequence[Sequence[tuple[int, Operation]]] = ()

    @property
    def turn(self) -> int:
        """Number of minibatches of a turn."""
        return math.lcm(*self.replicas)

    @property
    def placement(self) -> Placement | None:
        """Stages of each process, if some have several."""
        found = tuple(tuple(sorted({r for r, _ in order})) for order in self.orders)
        return Placement(found) if found else None

    def events(self) -> EventGraph:
        """Event graph of one turn; the first guess is that every operation waits for its input."""
        builder = _GraphBuilder(self)
        edges = sorted([*builder.orders, *builder.inputs], key=lambda edge: edge.target)
        targets, sources, times, turns = (np.array(column) for column in zip(*edges, strict=True))
        last_edges = np.searchsorted(targets, np.arange(targets[-1] + 1), side="right") - 1
        return EventGraph(sources, targets, times.astype(float), turns, last_edges)


class _Edge(NamedTuple):
    """`target` starts at least `time` after `source` did `turns` turns before."""

    target: int
    source: int
    time: float
    turns: int


class _Span(NamedTuple):
    """An operation or message.

    Attributes:
        event: its start.
        duration: what waits for it starts so long after its start.
        occupied: its device or link takes the next one so long after its start; until then a device may read data.
        ahead: turns by which its minibatch is ahead of those that its device ends in the same turn.
    """

    event: int
    duration: float
    occupied: float
    ahead: int = 0


_Name = tuple[Kind, int, int | None]
"""(kind, minibatch modulo the minibatches of a turn, microbatch) of an operation."""


def _ends(lane: Mapping[_Name, _Span]) -> dict[_Name, tuple[_Span, _Span]]:
    """The last backward before each update, and the update."""
    return {name: (before, span) for (_, before), (name, span) in pairwise(lane.items()) if name[0] is Kind.UPDATE}


class _GraphBuilder:
    """The edges of a pipeline's event graph.

    Attributes:
        orders: between the operations of a device or the messages of a link, in their order.
        inputs: to an operation from the message or average that it waits for.
    """

    def __init__(self, pipeline: SteadyPipeline) -> None:
        self.orders: list[_Edge] = []
        self.inputs: list[_Edge] = []
        self._pipeline = pipeline
        self._events = count()
        stages = range(len(pipeline.cycles))
        self._lanes: list[list[dict[_Name, _Span]]] = [[{}] for _ in stages]
        """By stage and replica, the operations in order."""
        for order in pipeline.orders:
            self._process(order)
        for r in stages if not pipeline.orders else ():
            lanes = [self._lane(r, replica) for replica in range(pipeline.replicas[r])]
            self._lanes[r] = lanes
            for lane in lanes:
                self._in_order([(operation, 0) for operation in lane.values()])
            if len(lanes) > 1:
                self._average(r, lanes)
        for sharing, _ in pipeline.ties:
            self._exchange(sharing)
        for r in stages:
            for sender in (each for each in (r - 1, r + 1) if each in stages):
                self._pass_messages(sender, r)

    def _lane(self, r: int, replica: int) -> dict[_Name, _Span]:
        turn, replicas = self._pipeline.turn, self._pipeline.replicas[r]
        lane: dict[_Name, _Span] = {}
        for first in range(replica, turn, replicas):
            for op in self._pipeline.cycles[r]:
                ahead, minibatch = divmod(first + op.minibatch * replicas, turn)
                lane[op.kind, minibatch, op.microbatch] = self._span(r, op, ahead)
        return lane

    def _span(self, r: int, op: Operation, ahead: int) -> _Span:
        times = self._pipeline.times
        duration = times.duration(r, op)
        return _Span(next(self._events), duration, duration + times.reading(r, op), ahead)

    def _process(self, order: Sequence[tuple[int, Operation]]) -> None:
        """Adds the operations of all stages of a process, which has no replicas."""
        spans = [self._span(r, op, op.minibatch) for r, op in order]
        for (r, op), span in zip(order, spans, strict=True):
            self._lanes[r][0][op.kind, 0, op.microbatch] = span
        self._in_order([(span, 0) for span in spans])

    def _average(self, r: int, lanes: Sequence[dict[_Name, _Span]]) -> None:
        """The updates of a round wait for the last backwards of all replicas, and for their average."""
        for of_round in zip(*(_ends(lane).values() for lane in lanes), strict=True):
            average, complete = next(self._events), next(self._events)
            for backward, update in of_round:
                ready = 0.0 if self._pipeline.overlapped else backward.duration
                self.inputs.append(_Edge(average, backward.event, ready, 0))
                self.inputs.append(_Edge(complete, backward.event, backward.duration, 0))
                self.inputs.append(_Edge(update.event, complete, 0.0, 0))
            self.inputs.append(_Edge(complete, average, self._pipeline.averaging[r], 0))

    def _exchange(self, sharing: Sequence[int]) -> None:
        """Updates wait for the last backwards of all stages that share a weight, and until its gradients are there."""
        ends = {r: {name: pair for lane in self._lanes[r] for name, pair in _ends(lane).items()} for r in sharing}
        for name in ends[sharing[0]]:
            complete = next(self._events)
            for r in sharing:
                backward, update = ends[r][name]
                sending = sum(seconds for stages, seconds in self._pipeline.ties if r in stages)
                self.inputs.append(_Edge(complete, backward.event, backward.duration, 0))
                self.inputs.append(_Edge(update.event, complete, sending, 0))

    def _pass_messages(self, sender: int, r: int) -> None:
        """Adds the messages from one stage to another, and for each kind their order at either end of the link."""
        pipeline = self._pipeline
        made = {name: span for lane in self._lanes[sender] for name, span in lane.items()}
        awaits = partial(sender_of, r=r, num_stages=len(pipeline.cycles), segments=pipeline.segments)
        messages: dict[_Name, _Span] = {}
        for lane in self._lanes[r]:
            taken: dict[Kind, list[tuple[_Span, int]]] = {}
            for name, target in lane.items():
                if awaits(op := Operation(*name)) != sender:
                    continue
                source = made[name]
                late = source.ahead - target.ahead
                transfer = pipeline.times.transfer(sender, r, op)
                occupation = pipeline.times.occupation(sender, r, op)
                if not occupation:
                    self.inputs.append(_Edge(target.event, source.event, source.duration + transfer, late))
                    continue
                messages[name] = message = _Span(next(self._events), occupation, occupation)
                self.inputs.append(_Edge(message.event, source.event, source.duration, 0))
                self.inputs.append(_Edge(target.event, message.event, transfer, late))
                taken.setdefault(op.kind, []).append((message, late))
            if len(self._lanes[sender]) > 1:
                for of_kind in taken.values():
                    self._in_order(of_kind)
        for lane, kind in product(self._lanes[sender], Kind):
            self._in_order([(messages[name], 0) for name in lane if name[0] is kind and name in messages])

    def _in_order(self, spans: Sequence[tuple[_Span, int]]) -> None:
        """Adds edges so that spans follow one another, turn by turn; each comes with the turns by which it is late."""
        for (span, late), (following, later) in pairwise(spans):
            self.orders.append(_Edge(following.event, span.event, span.occupied, late - later))
        if spans:
            (first, early), (last, late) = spans[0], spans[-1]
            self.orders.append(_Edge(first.event, last.event, last.occupied, late - early + 1))
