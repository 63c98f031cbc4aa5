"""Plays operation lists against each other, and draws them: when each operation runs, and where all would wait."""

import itertools
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from pipetrain.engine.program.recomputation import RecomputeSegments, sender_of
from pipetrain.engine.schedules.operation import Kind, Operation, update
from pipetrain.engine.schedules.placement import Placement
from pipetrain.engine.schedules.replicas import Replicas

Duration = Callable[[int, Operation], float]
Transfer = Callable[[int, int, Operation], float]
"""(sending worker, receiving worker, the receiver's operation) -> time."""

Orders = Sequence[Sequence[int]]
"""For each process, its workers in the order in which it takes their operations (`ListSchedule.order`)."""


class MessageTimes(NamedTuple):
    """Times of messages.

    Attributes:
        transfer: of a message once it leaves; its sender is not busy meanwhile.
        occupation: for which it keeps the next message of its kind from leaving.
    """

    transfer: Transfer = lambda *_: 0.0
    occupation: Transfer = lambda *_: 0.0


_INSTANT = MessageTimes()


@dataclass(frozen=True, slots=True)
class Slice:
    """One operation's time on its worker, in the unit of the durations that were given."""

    operation: Operation
    start: float
    end: float


class DeadlockError(ValueError):
    """Some workers wait for each other; carries what was played until then and the operation each is stuck at."""

    def __init__(self, played: list[list[Slice]], stuck: dict[int, Operation], replicas: Replicas) -> None:
        self.played = played
        self.stuck = stuck
        waiting = ", ".join(f"{replicas.name(worker)} at {op}" for worker, op in stuck.items())
        super().__init__(f"the operation lists deadlock: {waiting}")


def play(
    lists: Sequence[Sequence[Operation]],
    duration: Duration,
    segments: RecomputeSegments | None = None,
    messages: MessageTimes = _INSTANT,
    replicas: Replicas | None = None,
    orders: Orders | None = None,
) -> list[list[Slice]]:
    """Slices of every worker if each operation starts as soon as its process and its input are ready.

    An update of a stage with replicas waits for the last backward of its round on each of them; of the round whose
    weights come with it if they train alone.

    Args:
        lists: of all workers.
        duration: of each operation.
        segments: the stages that recompute together; None if none recomputes.
        messages: their times; none by default.
        replicas: the workers; None: one for each stage.
        orders: of the processes; None: each worker is alone in one.

    Raises:
        DeadlockError: some operation waits forever.
    """
    workers = replicas or Replicas.one_each(len(lists))
    last_backwards = [_last_backwards(each) if workers.several else {} for each in lists]
    playing = _Playing(segments, messages, workers, last_backwards)
    played: list[list[Slice]] = [[] for _ in lists]
    if orders is None:
        orders = [[worker] * len(operations) for worker, operations in enumerate(lists)]
    turns = [deque(order) for order in orders]
    free = [0.0] * len(turns)
    # Each sweep plays every process as far as its inputs allow: along the stages, as forwards go, then back, as
    # backwards do. Their order does not change the result, as an operation's start follows from ends alone. A sweep
    # that plays nothing is the end, or a deadlock.
    progress, sweep = True, range(len(turns))
    while progress:
        progress = False
        for process in sweep:
            turn = turns[process]
            while turn:
                worker = turn[0]
                op = lists[worker][len(played[worker])]
                if (arrival := playing.arrival(worker, op)) is None:
                    break
                start = max(free[process], arrival)
                free[process] = playing.ends[worker, op] = start + duration(worker, op)
                played[worker].append(Slice(op, start, free[process]))
                turn.popleft()
                progress = True
        sweep = sweep[::-1]
    if stuck := {turn[0]: lists[turn[0]][len(played[turn[0]])] for turn in turns if turn}:
        raise DeadlockError(played, stuck, workers)
    return played


@dataclass
class _Playing:
    """When the inputs of operations arrive, by the ends of the operations played so far."""

    segments: RecomputeSegments | None
    messages: MessageTimes
    workers: Replicas
    last_backwards: Sequence[Mapping[Operation, Operation]]
    """For each worker: update -> the last backward of the round that it ends."""
    ends: dict[tuple[int, Operation], float] = field(default_factory=dict)
    """(worker, operation) -> its end."""
    free: dict[tuple[int, int, Kind], float] = field(default_factory=dict)
    """(sending worker, receiving worker, kind) -> when the next message of this kind may leave."""

    def arrival(self, worker: int, op: Operation) -> float | None:
        """When all that an operation needs from other workers is there; None if some of it has not been played."""
        if op.kind is Kind.UPDATE:
            return self._round_end(worker, op)
        stage = self.workers.stage_of(worker)
        source = sender_of(op, stage, len(self.workers.counts), self.segments)
        if source is None:
            return 0.0
        sender = self.workers.worker(source, op.minibatch)
        if (sender, op) not in self.ends:
            return None
        connection = sender, worker, op.kind
        leaves = max(self.ends[sender, op], self.free.get(connection, 0.0))
        self.free[connection] = leaves + self.messages.occupation(sender, worker, op)
        return leaves + self.messages.transfer(sender, worker, op)

    def _round_end(self, worker: int, op: Operation) -> float | None:
        """The end of the last backward on each replica of the round that the update waits for; 0 without replicas."""
        if not self.workers.several:
            return 0.0
        replicas = self.workers.workers_of(self.workers.stage_of(worker))
        if self.workers.delay:
            rounds = op.minibatch // len(replicas) + 1 - self.workers.delay
            op = update(rounds * len(replicas) - 1)
        last = [(each, self.last_backwards[each].get(op)) for each in replicas]
        backwards = [(each, backward) for each, backward in last if backward is not None]
        if any(each not in self.ends for each in backwards):
            return None
        return max((self.ends[each] for each in backwards), default=0.0)


def _last_backwards(operations: Sequence[Operation]) -> dict[Operation, Operation]:
    """Update -> the last backward of the round that it ends, for each round of a worker's list that has a backward."""
    found: dict[Operation, Operation] = {}
    latest: Operation | None = None
    for op in operations:
        if op.kind is Kind.BACKWARD:
            latest = op
        elif op.kind is Kind.UPDATE and latest is not None:
            found[op], latest = latest, None
    return found


def idle_shares(played: Sequence[Sequence[Slice]], placement: Placement | None = None) -> list[float]:
    """Share of the whole time, first start to last end, in which the process of each stage computes nothing.

    Without `placement` each stage, or replica of one, has a process to itself.
    """
    end = max((slices[-1].end for slices in played if slices), default=0.0)
    if end <= 0:
        return [0.0 for _ in played]
    busy = [sum(piece.end - piece.start for piece in slices) for slices in played]
    return [1.0 - each / end for each in (busy if placement is None else placement.sums(busy))]


def step_times(played: Sequence[Sequence[Slice]]) -> list[float]:
    """The time of each minibatch: from the update before to its own on the last stage; the last one until the drain.

    The minibatches of a round of replicas share its time.
    """
    updates = [piece for piece in played[-1] if piece.operation.kind is Kind.UPDATE]
    ends, minibatches = [0.0], [0]
    for piece in updates:
        share = piece.operation.minibatch + 1 - minibatches[-1]
        ends += [*(ends[-1] + (piece.end - ends[-1]) * i / share for i in range(1, share)), piece.end]
        minibatches.append(piece.operation.minibatch + 1)
    ends[-1] = max(slices[-1].end for slices in played if slices)
    return [end - begin for begin, end in itertools.pairwise(ends)]


def unit_duration(_stage: int, operation: Operation) -> float:
    """1 for a forward, recomputation or backward, and 0 for an update."""
    return 0.0 if operation.kind is Kind.UPDATE else 1.0


def grid(
    lists: Sequence[Sequence[Operation]],
    guilty: tuple[int, int | None] | None = None,
    replicas: Replicas | None = None,
    orders: Orders | None = None,
) -> str:
    """The lists as a grid; if they deadlock, the operations until then, each guilty cell marked `!`.

    `guilty` is the worker and the place in its list that a check blames instead. Without `replicas` workers are stages.

    Two stages under `gpipe` with N = 2, one minibatch::

        stage 0  F0.0 F0.1  .    .   B0.0 B0.1
        stage 1   .   F0.0 F0.1 B0.0 B0.1
    """
    workers = replicas or Replicas.one_each(len(lists))
    stuck: dict[int, Operation] = {}
    try:
        played = play(lists, unit_duration, replicas=workers, orders=orders)
    except DeadlockError as error:
        played, stuck = error.played, error.stuck
    rows = [_cells(slices) for slices in played]
    if guilty is not None:
        worker, place = guilty
        stuck = {worker: lists[worker][place]} if place is not None and place >= len(played[worker]) else {}
        rows[worker] = _cells(played[worker], place)
    for r, op in stuck.items():
        rows[r].append(f"!{op}")
    width = max((len(cell) for cells in rows for cell in cells), default=0)
    names = [workers.name(worker) for worker in range(len(rows))]
    longest = max(map(len, names))
    return "\n".join(
        f"{name:{longest}}  " + " ".join(cell.center(width) for cell in cells).rstrip()
        for name, cells in zip(names, rows, strict=True)
    )


def _cells(slices: Sequence[Slice], marked: int | None = None) -> list[str]:
    """A worker's row of a grid, one cell per unit of time; the slice `marked` begins with `!`.

    Updates take no time and so have no cell, unless one is marked: it then takes one as well, and what follows
    on this worker moves to the right.
    """
    cells: list[str] = []
    for index, piece in enumerate(slices):
        if piece.operation.kind is not Kind.UPDATE or index == marked:
            cells += ["."] * (int(piece.start) - len(cells))
            cells.append(f"{'!' if index == marked else ''}{piece.operation}")
    return cells
