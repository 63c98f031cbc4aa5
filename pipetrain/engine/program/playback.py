"""Plays operation lists against each other, and draws them: when each operation runs, and where all would wait."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pipetrain.engine.program.recomputation import RecomputeSegments, sender_of
from pipetrain.engine.schedules.operation import Kind, Operation
from pipetrain.engine.schedules.replicas import Replicas

Duration = Callable[[int, Operation], float]
Transfer = Callable[[int, int, Operation], float]
"""(sending worker, receiving worker, the receiver's operation) -> time."""


def _no_time(_source: int, _target: int, _operation: Operation) -> float:
    return 0.0


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
    transfer: Transfer = _no_time,
    occupation: Transfer = _no_time,
    replicas: Replicas | None = None,
) -> list[list[Slice]]:
    """Slices of every worker if each operation starts as soon as its worker and its input are ready.

    An update of a stage with replicas waits for the last backward of its round on each of them.

    Args:
        lists: of all workers.
        duration: of each operation.
        segments: the stages that recompute together; None if none recomputes.
        transfer: time of a message once it leaves; its sender is not busy meanwhile.
        occupation: time for which it keeps the next message of its kind from leaving.
        replicas: the workers; None: one for each stage.

    Raises:
        DeadlockError: some operation waits forever.
    """
    workers = replicas or Replicas.one_each(len(lists))
    playing = _Playing(lists, segments, transfer, occupation, workers)
    played: list[list[Slice]] = [[] for _ in lists]
    # Each sweep plays every list as far as its inputs allow: along the stages, as forwards go, then back, as backwards
    # do. The order of the workers does not change the result, as an operation's start follows from ends alone. A sweep
    # that plays nothing is the end, or a deadlock.
    progress, order = True, range(len(lists))
    while progress:
        progress = False
        for r in order:
            operations = lists[r]
            while len(played[r]) < len(operations):
                op = operations[len(played[r])]
                if (arrival := playing.arrival(r, op)) is None:
                    break
                start = max(played[r][-1].end if played[r] else 0.0, arrival)
                played[r].append(Slice(op, start, start + duration(r, op)))
                playing.ends[r, op] = played[r][-1].end
                progress = True
        order = order[::-1]
    if stuck := _unplayed(lists, played):
        raise DeadlockError(played, stuck, workers)
    return played


def _unplayed(lists: Sequence[Sequence[Operation]], played: Sequence[Sequence[Slice]]) -> dict[int, Operation]:
    """Worker -> the operation that it is stuck at, of the workers that have not played their whole lists."""
    rows = enumerate(zip(lists, played, strict=True))
    return {r: operations[len(slices)] for r, (operations, slices) in rows if len(slices) < len(operations)}


class _Playing:
    """When the inputs of operations arrive, by the ends of the operations played so far."""

    def __init__(
        self,
        lists: Sequence[Sequence[Operation]],
        segments: RecomputeSegments | None,
        transfer: Transfer,
        occupation: Transfer,
        workers: Replicas,
    ) -> None:
        self.ends: dict[tuple[int, Operation], float] = {}
        """(worker, operation) -> its end."""
        self._segments = segments
        self._transfer, self._occupation = transfer, occupation
        self._workers = workers
        self._ends_of_rounds = [_last_backwards(each) if workers.several else {} for each in lists]
        self._free: dict[tuple[int, int, Kind], float] = {}
        """(sending worker, receiving worker, kind) -> when the next message of this kind may leave."""

    def arrival(self, worker: int, op: Operation) -> float | None:
        """When all that an operation needs from other workers is there; None if some of it has not been played."""
        if op.kind is Kind.UPDATE:
            return self._round_end(worker, op)
        stage = self._workers.stage_of(worker)
        source = sender_of(op, stage, len(self._workers.counts), self._segments)
        if source is None:
            return 0.0
        sender = self._workers.worker(source, op.minibatch)
        if (sender, op) not in self.ends:
            return None
        connection = sender, worker, op.kind
        leaves = max(self.ends[sender, op], self._free.get(connection, 0.0))
        self._free[connection] = leaves + self._occupation(sender, worker, op)
        return leaves + self._transfer(sender, worker, op)

    def _round_end(self, worker: int, update: Operation) -> float | None:
        """The end of the last backward on each replica, whose gradients the update averages; 0 without replicas."""
        if not self._workers.several:
            return 0.0
        replicas = self._workers.workers_of(self._workers.stage_of(worker))
        last = [(each, self._ends_of_rounds[each].get(update)) for each in replicas]
        backwards = [(each, op) for each, op in last if op is not None]
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


def idle_shares(played: Sequence[Sequence[Slice]]) -> list[float]:
    """Share of the whole time, first start to last end, in which each stage computes nothing."""
    end = max((slices[-1].end for slices in played if slices), default=0.0)
    if end <= 0:
        return [0.0 for _ in played]
    return [1.0 - sum(s.end - s.start for s in slices) / end for slices in played]


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
        played = play(lists, unit_duration, replicas=workers)
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
