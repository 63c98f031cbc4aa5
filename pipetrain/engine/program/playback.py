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
    ends_of_rounds = [_last_backwards(each) if workers.several else {} for each in lists]
    played: list[list[Slice]] = [[] for _ in lists]
    ends: dict[tuple[int, Operation], float] = {}
    free: dict[tuple[int, int, Kind], float] = {}
    progress = True
    while progress:
        progress = False
        for r, operations in enumerate(lists):
            while len(played[r]) < len(operations):
                op = operations[len(played[r])]
                stage, arrival = workers.stage_of(r), 0.0
                if op.kind is Kind.UPDATE:
                    replicas_of_stage = workers.workers_of(stage)
                    others = [(w, ends_of_rounds[w][op]) for w in replicas_of_stage if op in ends_of_rounds[w]]
                    if any(other not in ends for other in others):
                        break
                    arrival = max((ends[other] for other in others), default=0.0)
                if (source := sender_of(op, stage, len(workers.counts), segments)) is not None:
                    sender = workers.worker(source, op.minibatch)
                    if (sender, op) not in ends:
                        break
                    leaves = max(ends[sender, op], free.get((sender, r, op.kind), 0.0))
                    free[sender, r, op.kind] = leaves + occupation(sender, r, op)
                    arrival = leaves + transfer(sender, r, op)
                start = max(played[r][-1].end if played[r] else 0.0, arrival)
                ends[r, op] = start + duration(r, op)
                played[r].append(Slice(op, start, ends[r, op]))
                progress = True
    stuck = {r: ops[len(played[r])] for r, ops in enumerate(lists) if len(played[r]) < len(ops)}
    if stuck:
        raise DeadlockError(played, stuck, workers)
    return played


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
