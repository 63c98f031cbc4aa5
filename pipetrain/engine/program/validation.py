"""Checks of operation lists before anything runs."""

from collections import Counter
from collections.abc import Collection, Sequence

from pipetrain.engine.program.playback import DeadlockError, Orders, grid, play, unit_duration
from pipetrain.engine.program.recomputation import RecomputeSegments
from pipetrain.engine.schedules.operation import Kind, Operation
from pipetrain.engine.schedules.replicas import Replicas

MOST_IN_FLIGHT = 64
"""Largest number of minibatches in flight with which lists are checked; deeper pipelines only take longer."""


class ScheduleError(ValueError):
    """Operation lists that no pipeline can carry out."""


def validate(
    lists: Sequence[Sequence[Operation]],
    num_microbatches: int,
    minibatches: int,
    segments: RecomputeSegments | None = None,
    replicas: Replicas | None = None,
    orders: Orders | None = None,
) -> None:
    """Checks that every microbatch passes every stage once, in one order, F before R before B before W before U.

    With replicas it passes one replica of each stage, and every replica has the updates of its stage. No operation may
    wait forever in the orders of the processes (`playback.play`). If one list has a W, all backwards need one.

    Raises:
        ScheduleError: with the reason and the grid.
    """
    kinds = _kinds(lists, recomputes=segments is not None)
    messages = [kind for kind in kinds if kind is not Kind.WEIGHT_GRADIENT]
    workers = replicas or Replicas.one_each(len(lists))
    first_stage = [op for worker in workers.workers_of(0) for op in lists[worker]]
    if workers.counts[0] > 1:
        first_stage.sort(key=lambda op: op.minibatch)
    for worker, operations in enumerate(lists):
        own = _OwnMinibatches(workers, worker, num_microbatches, minibatches, kinds)
        fault = _first_fault(operations, own) or _first_disorder(operations, first_stage, messages)
        if fault is not None:
            index, reason = fault
            place = "" if index is None else f", operation {index}"
            raise ScheduleError(f"{workers.name(worker)}{place}: {reason}\n{grid(lists, (worker, index), workers)}")
    _check_counts(lists, orders or ())
    try:
        play(lists, unit_duration, segments, replicas=workers, orders=orders)
    except DeadlockError as error:
        raise ScheduleError(f"{error}\n{grid(lists, replicas=workers, orders=orders)}") from None


def _kinds(lists: Sequence[Sequence[Operation]], *, recomputes: bool) -> tuple[Kind, ...]:
    """The kinds that every microbatch needs at every stage."""
    splits = any(op.kind is Kind.WEIGHT_GRADIENT for operations in lists for op in operations)
    needed = {Kind.RECOMPUTATION: recomputes, Kind.WEIGHT_GRADIENT: splits, Kind.UPDATE: False}
    return tuple(kind for kind in Kind if needed.get(kind, True))


def _check_counts(lists: Sequence[Sequence[Operation]], orders: Orders) -> None:
    """Compares the number of operations of a stage in the order of its process with its list."""
    for process, order in enumerate(orders):
        for stage, count in Counter(order).items():
            if count != len(lists[stage]):
                raise ScheduleError(
                    f"process {process}: its order has {count} operations of stage {stage}, whose list has "
                    f"{len(lists[stage])}"
                )


_MicrobatchOp = tuple[Kind, int, int | None]
"""(kind, minibatch, microbatch); an operation of a whole minibatch stands for one of each of its microbatches."""


class _OwnMinibatches:
    """The minibatches and rounds that a worker's list has to contain."""

    def __init__(
        self, replicas: Replicas, worker: int, num_microbatches: int, minibatches: int, kinds: Sequence[Kind]
    ) -> None:
        self.kinds = kinds
        stage = replicas.stage_of(worker)
        self._minibatches = replicas.own(worker, minibatches)
        self._updates = replicas.round_ends(stage, minibatches)
        self._round = replicas.counts[stage]
        self._microbatches = range(num_microbatches)

    def parts(self, op: Operation) -> list[_MicrobatchOp]:
        if op.kind is Kind.UPDATE:
            return [(op.kind, op.minibatch, None)]
        return [(op.kind, op.minibatch, j) for j in op.covers(len(self._microbatches))]

    def expected(self) -> set[_MicrobatchOp]:
        operations = {(kind, t, j) for t in self._minibatches for j in self._microbatches for kind in self.kinds}
        return operations | {(Kind.UPDATE, end, None) for end in self._updates}

    def misplaced(self, part: _MicrobatchOp, done: Collection[_MicrobatchOp]) -> str | None:
        """Position of `part` relative to another operation, given those `done` before it; None if it is correct."""
        kind, t, j = part
        first = t // self._round * self._round
        if kind is Kind.UPDATE:
            late = first and (kind, first - 1, None) not in done
            return "before the update of the minibatch before it" if late else None
        for earlier in self.kinds[: self.kinds.index(kind)]:
            if (earlier, t, j) not in done:
                return f"before its {earlier.word}"
        return "after its update" if (Kind.UPDATE, self._updates[t // self._round], None) in done else None


def _first_fault(operations: Sequence[Operation], own: _OwnMinibatches) -> tuple[int | None, str] | None:
    """(index in the list, reason); the index is None if an operation is missing."""
    expected, done = own.expected(), set[_MicrobatchOp]()
    parts = [(index, op, part) for index, op in enumerate(operations) for part in own.parts(op)]
    for index, op, part in parts:
        if part in done:
            return index, f"{op} is in its list twice"
        if part not in expected:
            return index, f"{op} belongs to no minibatch of this list"
        done.add(part)
    if missing := expected - done:
        return None, f"{min(str(Operation(*part)) for part in missing)} is missing from its list"
    done.clear()
    for index, op, part in parts:
        if (place := own.misplaced(part, done)) is not None:
            return index, f"{op} comes {place}"
        done.add(part)
    return None


def _first_disorder(
    operations: Sequence[Operation], first_stage: Sequence[Operation], kinds: Collection[Kind]
) -> tuple[int, str] | None:
    own = {op.minibatch for op in operations if op.kind is not Kind.UPDATE}
    for kind in kinds:
        in_order = iter(op for op in first_stage if op.kind is kind and op.minibatch in own)
        for index, op in enumerate(operations):
            if op.kind is kind and op != next(in_order):
                order = f"its {kind.word}s are in another order than stage 0's"
                return index, f"{order}: messages would be mistaken for each other"
    return None
