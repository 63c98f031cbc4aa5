"""The operations and messages of a pipeline in its steady state, as events that repeat every turn."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count, pairwise, product
from typing import NamedTuple

import numpy as np

from pipetrain.program.event_graph import EventGraph
from pipetrain.program.recomputation import RecomputeSegments
from pipetrain.program.replication import Replication
from pipetrain.program.routes import Routes
from pipetrain.program.times import StageTimes
from pipetrain.schedules.operation import Kind, Operation


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
        """What happens in a turn; the first guess is that every operation waits for its input."""
        weaver = _Weaver(self)
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


class _Event(NamedTuple):
    """An operation or message.

    Attributes:
        number: of the event.
        time: what it takes.
        ahead: how many turns its minibatch is ahead of those that its device ends in the same turn.
        reading: for how long its device reads data behind it.
    """

    number: int
    time: float
    ahead: int
    reading: float = 0.0


_Name = tuple[Kind, int, int | None]
"""Of an operation: kind, minibatch modulo the minibatches of a turn, microbatch."""


class _Weaver:
    """Puts the edges of a pipeline together.

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
        self._lanes: list[list[dict[_Name, _Event]]] = []
        """By stage and replica, the events in order."""

    def order_operations(self, r: int) -> None:
        """Lets the replicas of a stage carry out their operations in order, and average their gradients."""
        replicas = self._pipeline.replication.replicas[r]
        lanes = [self._lane(r, replica, replicas) for replica in range(replicas)]
        self._lanes.append(lanes)
        for lane in lanes:
            self._in_order([(event, 0) for event in lane.values()])
        if replicas > 1:
            self._average(r, lanes)

    def _lane(self, r: int, replica: int, replicas: int) -> dict[_Name, _Event]:
        turn = self._pipeline.replication.turn
        lane: dict[_Name, _Event] = {}
        for first in range(replica, turn, replicas):
            for op in self._pipeline.cycles[r]:
                ahead, minibatch = divmod(first + op.minibatch * replicas, turn)
                times = self._pipeline.times
                event = _Event(next(self._numbers), times.duration(r, op), ahead, times.reading(r, op))
                lane[op.kind, minibatch, op.microbatch] = event
        return lane

    def _average(self, r: int, lanes: Sequence[dict[_Name, _Event]]) -> None:
        """The updates of a round wait for the backwards of all replicas, and for their average."""
        replication = self._pipeline.replication
        for of_round in zip(*(self._ends(lane) for lane in lanes), strict=True):
            average = next(self._numbers)
            for backward, update in of_round:
                begun = 0.0 if replication.overlapped else backward.time
                self.inputs.append(_Edge(average, backward.number, begun, 0))
                self.inputs.append(_Edge(update.number, average, replication.averaging[r], 0))

    @staticmethod
    def _ends(lane: dict[_Name, _Event]) -> list[tuple[_Event, _Event]]:
        """The last backward before each update, and the update."""
        return [(before, event) for (_, before), (name, event) in pairwise(lane.items()) if name[0] is Kind.UPDATE]

    def pass_messages(self, r: int) -> None:
        """Lets the operations of a stage wait for their messages, and each message for the one before of its kind."""
        for sender in (r - 1, r + 1):
            if 0 <= sender < len(self._lanes):
                messages = self._take(sender, r)
                for lane, kind in product(self._lanes[sender], Kind):
                    self._in_order([(messages[name], 0) for name in lane if name[0] is kind and name in messages])

    def _take(self, sender: int, r: int) -> dict[_Name, _Event]:
        """Of the messages between two stages those that keep their link for a while."""
        made = {name: event for lane in self._lanes[sender] for name, event in lane.items()}
        messages: dict[_Name, _Event] = {}
        for lane in self._lanes[r]:
            taken: dict[Kind, list[tuple[_Event, int]]] = {}
            for name, target in lane.items():
                op = Operation(*name)
                if self._routes.sender(r, op) != sender:
                    continue
                source, late = made[name], made[name].ahead - target.ahead
                transfer = self._pipeline.times.transfer(sender, r, op)
                occupation = self._pipeline.times.occupation(sender, r, op)
                if not occupation:
                    self.inputs.append(_Edge(target.number, source.number, source.time + transfer, late))
                    continue
                messages[name] = message = _Event(next(self._numbers), occupation, 0)
                self.inputs.append(_Edge(message.number, source.number, source.time, 0))
                self.inputs.append(_Edge(target.number, message.number, transfer, late))
                taken.setdefault(op.kind, []).append((message, late))
            if len(self._lanes[sender]) > 1:
                for of_kind in taken.values():
                    self._in_order(of_kind)
        return messages

    def _in_order(self, events: Sequence[tuple[_Event, int]]) -> None:
        """Lets events happen one after the other, turn for turn; each is said to be so many turns late."""
        if not events:
            return
        for (event, late), (following, later) in pairwise(events):
            self.orders.append(_Edge(following.number, event.number, event.time + event.reading, late - later))
        (first, early), (last, late) = events[0], events[-1]
        self.orders.append(_Edge(first.number, last.number, last.time + last.reading, late - early + 1))
