"""Plays operation lists against each other: when each operation runs, where a stage idles, whether all can finish."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pipetrain.program.recomputation import RecomputeSegments
from pipetrain.program.routes import Routes
from pipetrain.schedules.operation import Kind, Operation

Duration = Callable[[int, Operation], float]
Transfer = Callable[[int, int, Operation], float]
"""(sending stage, receiving stage, the receiver's operation) -> time."""


def _no_time(_source: int, _target: int, _operation: Operation) -> float:
    return 0.0


@dataclass(frozen=True, slots=True)
class Slice:
    """One operation's time on its stage, in the unit of the durations that were given."""

    operation: Operation
    start: float
    end: float


class DeadlockError(ValueError):
    """Some stages wait for each other; carries what was played until then and the operation each is stuck at."""

    def __init__(self, played: list[list[Slice]], stuck: dict[int, Operation]) -> None:
        self.played = played
        self.stuck = stuck
        waiting = ", ".join(f"stage {r} at {op}" for r, op in stuck.items())
        super().__init__(f"the operation lists deadlock: {waiting}")


def play(
    lists: Sequence[Sequence[Operation]],
    duration: Duration,
    segments: RecomputeSegments | None = None,
    transfer: Transfer = _no_time,
    occupation: Transfer = _no_time,
) -> list[list[Slice]]:
    """The slices of every stage when each operation starts as soon as its stage and its input are ready.

    Args:
        lists: of all stages.
        duration: of each operation.
        segments: which stages recompute together; None where none does.
        transfer: how long a message takes once it leaves; none keeps its sender busy.
        occupation: how long it keeps the next one of its kind from leaving.

    Raises:
        DeadlockError: some operation waits for ever.
    """
    routes = Routes(len(lists), segments)
    played: list[list[Slice]] = [[] for _ in lists]
    ends: dict[tuple[int, Operation], float] = {}
    free: dict[tuple[int, int, Kind], float] = {}
    progress = True
    while progress:
        progress = False
        for r, operations in enumerate(lists):
            while len(played[r]) < len(operations):
                op = operations[len(played[r])]
                sender, arrival = routes.sender(r, op), 0.0
                if sender is not None:
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
        raise DeadlockError(played, stuck)
    return played


def idle_shares(played: Sequence[Sequence[Slice]]) -> list[float]:
    """For each stage the share of the whole time, first start to last end, in which it computes nothing."""
    end = max((slices[-1].end for slices in played if slices), default=0.0)
    if end <= 0:
        return [0.0 for _ in played]
    return [1.0 - sum(s.end - s.start for s in slices) / end for slices in played]


def step_times(played: Sequence[Sequence[Slice]]) -> list[float]:
    """The time of each minibatch: from the update before to its own on the last stage; the last one until the drain."""
    ends = [0.0, *(piece.end for piece in played[-1] if piece.operation.kind is Kind.UPDATE)]
    ends[-1] = max(slices[-1].end for slices in played if slices)
    return [end - begin for begin, end in itertools.pairwise(ends)]
