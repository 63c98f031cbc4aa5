"""Plays events whose computations share cores."""

from collections.abc import Iterator, Sequence
from heapq import heappop, heappush
from itertools import count
from math import inf
from typing import NamedTuple

import numpy as np

from pipetrain.program.computing_graph import NO_TASK, ComputingGraph
from pipetrain.program.repetition import PlayState
from pipetrain.program.shared_cores import CoreClock


class _Instance(NamedTuple):
    """An event in some turn."""

    event: int
    turn: int


class _Computation(NamedTuple):
    """What a task computes before an event."""

    task: int
    before: _Instance


class _Wait(NamedTuple):
    """Of an event for another one: see `EventGraph`."""

    event: int
    time: float
    turns: int
    task: int


class SharedPlay:
    """An endless play in which the rate of every computation changes whenever another on its host begins or ends.

    Max-plus algebra knows no rates, so this is played, event by event. It begins as if all that comes from turns
    before the first had arrived.
    """

    def __init__(self, graph: ComputingGraph, hosts: Sequence[int], at_once: float) -> None:
        """Prepares the first turn.

        Args:
            graph: the events.
            hosts: of each task.
            at_once: computations that a host carries out at full speed.
        """
        self._hosts = hosts
        self._clocks = [CoreClock[_Computation](at_once) for _ in range(max(hosts) + 1)]
        self._ends: list[tuple[float, int, int]] = []
        """(time, changes of the clock by then, host): what is out of date is passed over."""
        self._arrivals: list[tuple[float, int, _Instance]] = []
        self._order = count()
        self._now, self._steps, self._busy = 0.0, 0, np.zeros(len(hosts))
        self._begun: dict[int, float] = {}
        self._waits = _by_source(graph)
        self._awaited = np.bincount(graph.events.targets).tolist()
        self._missing = dict(_first_missing(graph))

    def turns(self) -> Iterator[PlayState]:
        """The state whenever event 0 happens, from the second turn on.

        Raises:
            ValueError: some events wait for each other within a turn, so that none ever starts.
        """
        for instance in [each for each, left in self._missing.items() if not left]:
            del self._missing[instance]
            self._happen(instance)
        while True:
            if (happening := self._arrive()) is not None:
                self._happen(happening)
                if not happening.event:
                    yield self._state(happening.turn)

    def _arrive(self) -> _Instance | None:
        """Goes on to the next arrival or end of a computation, and tells the event that happens then, if any does."""
        instance = self._next()
        self._steps += 1
        left = self._missing.pop(instance, self._awaited[instance.event]) - 1
        if not left:
            return instance
        self._missing[instance] = left
        return None

    def _next(self) -> _Instance:
        while self._ends and self._ends[0][1] != self._clocks[self._ends[0][2]].changes:
            heappop(self._ends)
        if self._ends and (not self._arrivals or self._ends[0][0] < self._arrivals[0][0]):
            self._now, _, host = heappop(self._ends)
            return self._end(host)
        if not self._arrivals:
            raise ValueError("some events wait for each other within a turn")
        self._now, _, instance = heappop(self._arrivals)
        return instance

    def _end(self, host: int) -> _Instance:
        task, before = self._clocks[host].end(self._now)
        self._busy[task] += self._now - self._begun.pop(task)
        self._expect(host)
        return before

    def _happen(self, instance: _Instance) -> None:
        """Lets everything begin that an event is awaited for."""
        for target, time, turns, task in self._waits[instance.event]:
            awaiting = _Instance(target, instance.turn + turns)
            if task == NO_TASK:
                heappush(self._arrivals, (self._now + time, next(self._order), awaiting))
            else:
                self._begun[task] = self._now
                self._clocks[self._hosts[task]].begin(self._now, time, _Computation(task, awaiting))
                self._expect(self._hosts[task])

    def _expect(self, host: int) -> None:
        clock = self._clocks[host]
        if (end := clock.next_end()) < inf:
            heappush(self._ends, (end, clock.changes, host))

    def _state(self, turn: int) -> PlayState:
        computing = (each for clock in self._clocks for each in clock.left(self._now))
        left = sorted(
            [(each.before, True, seconds) for each, seconds in computing]
            + [(instance, False, time - self._now) for time, _, instance in self._arrivals]
        )
        running = tuple((event, at - turn, computed) for (event, at), computed, _ in left)
        missing = sorted((event, at - turn, number) for (event, at), number in self._missing.items())
        busy = self._busy.copy()
        for task, begun in self._begun.items():
            busy[task] += self._now - begun
        seconds_left = np.array([seconds for _, _, seconds in left])
        return PlayState(turn, self._now, self._steps, busy, (running, *missing), seconds_left)


def _by_source(graph: ComputingGraph) -> list[list[_Wait]]:
    events = graph.events
    waits: list[list[_Wait]] = [[] for _ in events.preferred]
    columns = events.sources, events.targets, events.times, events.turns, graph.tasks
    for source, *wait in zip(*(column.tolist() for column in columns), strict=True):
        waits[source].append(_Wait(*wait))
    return waits


def _first_missing(graph: ComputingGraph) -> Iterator[tuple[_Instance, int]]:
    """How much the events of the first turns wait for that some of what they wait for is of turns before."""
    events = graph.events
    awaited = np.bincount(events.targets)
    for turn in range(int(events.turns.max())):
        earlier = np.bincount(events.targets[events.turns > turn], minlength=len(awaited))
        for event in np.flatnonzero(earlier).tolist():
            yield _Instance(event, turn), int(awaited[event] - earlier[event])
