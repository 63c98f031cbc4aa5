"""Cores that the devices of a pipeline share, and the computations under way on those of a host."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count
from math import inf
from typing import Generic, TypeVar

Task = TypeVar("Task")


@dataclass(frozen=True)
class SharedCores:
    """Which devices of a pipeline are no devices of their own, but processes on the cores of a host.

    Attributes:
        at_once: how many computations the cores of a host carry out at full speed; more share them evenly.
        hosts: of each device, numbered from 0.
    """

    at_once: float
    hosts: Sequence[int]

    @property
    def scarce(self) -> bool:
        """Whether the devices of some host can have more to compute than its cores carry out at full speed."""
        return max(Counter(self.hosts).values()) > self.at_once


class CoreClock(Generic[Task]):
    """The computations of a host, each of k at the same rate: min(1, C / k) where C go at full speed.

    As they advance alike, the clock shows how far one of them has come since the host was last idle. One that begins
    ends when the clock shows so much more, however often the rate changes until then.

    Attributes:
        changes: how often a computation has begun or ended.
    """

    def __init__(self, at_once: float) -> None:
        self.changes = 0
        self._at_once = at_once
        self._seen = self._shown = 0.0
        self._order = count()
        self._running: list[tuple[float, int, Task]] = []

    def begin(self, now: float, seconds: float, task: Task) -> None:
        """Begins a computation of so many seconds at full speed."""
        self._shown, self._seen = self._shows(now), now
        heappush(self._running, (self._shown + seconds, next(self._order), task))
        self.changes += 1

    def next_end(self) -> float:
        """When the next computation ends if none begins before; infinite where there is none."""
        if not self._running:
            return inf
        return self._seen + (self._running[0][0] - self._shown) / self._rate

    def end(self, now: float) -> Task:
        """Ends that computation."""
        self._shown, _, task = heappop(self._running)
        self._seen = now
        self._shown = self._shown if self._running else 0.0
        self.changes += 1
        return task

    def left(self, now: float) -> Iterator[tuple[Task, float]]:
        """What is under way, and the seconds that it has left at full speed."""
        shows = self._shows(now)
        return ((task, end - shows) for end, _, task in self._running)

    @property
    def _rate(self) -> float:
        return min(1.0, self._at_once / len(self._running))

    def _shows(self, now: float) -> float:
        return self._shown + (now - self._seen) * self._rate if self._running else 0.0
