"""A stage's list with what each operation reads, and until when each version is needed, known before anything runs."""

from collections.abc import Iterator, Sequence
from enum import StrEnum
from functools import lru_cache
from itertools import accumulate
from typing import NamedTuple

from pipetrain.engine.errors import ConfigError
from pipetrain.engine.program.weight_reads import (
    ReadContext,
    ReadPolicy,
    StageContext,
    WeightRead,
    WeightTransform,
    query_method,
)
from pipetrain.engine.schedules.operation import Kind, Operation, backward, forward


class Activations(StrEnum):
    """Use of the activations that a forward or recomputation computes."""

    KEPT = "kept"
    """Consumed by a backward that reads the same weights."""
    REBOUND = "rebound"
    """Consumed by a backward that reads other weights, which take the place of the forward's in the graph."""
    DROPPED = "dropped"
    """Freed; a recomputation computes them again."""


class PlannedOperation(NamedTuple):
    """An operation of a stage's list, and what it reads.

    Attributes:
        read: the weights that it reads; of an update, the version that it replaces.
        activations: use of the activations that it computes, or that a backward consumes, in B and W.
        releases: True if no later operation reads that version, or the stashed weights that this one reads.
    """

    operation: Operation
    read: WeightRead
    activations: Activations
    releases: bool

    def moved(self, minibatches: int, updates: int) -> "PlannedOperation":
        """The same operation so many minibatches, and updates of its stage, later."""
        operation, read = self.operation.moved(minibatches), self.read.moved(updates)
        return PlannedOperation(operation, read, self.activations, self.releases)


def planned_operations(
    context: StageContext,
    operations: Sequence[Operation],
    first_stage: Sequence[Sequence[Operation]],
    policy: ReadPolicy,
    lead: int,
    start: int,
) -> list[PlannedOperation]:
    """Operations of a stage's list, with the weights that each reads under `policy`.

    Args:
        context: the stage's.
        operations: the list of one of its workers.
        first_stage: the lists of the workers of stage 0.
        policy: the method.
        lead: microbatch steps between a recomputation and its backward.
        start: minibatches of the run before the list.

    Raises:
        ConfigError: the policy reads weights changed by something else than a `WeightTransform`.
    """
    entries = {
        (op.minibatch, op.microbatch or 0): newest
        for listed in first_stage
        for op, newest in zip(listed, _updates_before(listed), strict=True)
        if op.kind is Kind.FORWARD
    }
    contexts = _read_contexts(context, operations, entries, lead, start)
    reads = list(_reads(policy, contexts))
    activations = _activations(operations, reads, context.num_microbatches)
    held = [_shared(read.held(op.kind)) for op, read in zip(operations, reads, strict=True)]
    last_reader = {each: index for index, each in enumerate(held)}
    releases = [last_reader[each] == index for index, each in enumerate(held)]
    return list(map(PlannedOperation, operations, reads, activations, releases))


def rebinds_weights(planned: Sequence[PlannedOperation]) -> bool:
    """True if some backward reads different weights than the forward or recomputation that it differentiates."""
    return any(each.activations is Activations.REBOUND for each in planned)


def _reads(policy: ReadPolicy, contexts: Iterator[ReadContext]) -> Iterator[WeightRead]:
    forwards: dict[tuple[int, int], WeightRead] = {}
    for at in contexts:
        op = at.operation
        if op.kind is Kind.UPDATE:
            yield _shared(WeightRead(at.newest))
            continue
        microbatch = op.minibatch, op.microbatch or 0
        found = query_method(policy, at, forwards.get(microbatch))
        kind = type(found.transform)
        if found.transform is not None and not _is_transform(kind):
            raise ConfigError(
                f"method: {type(policy).__name__} reads weights changed by {kind.__name__}, which must be a frozen "
                "dataclass that inherits pipetrain.WeightTransform"
            )
        read = _shared(found)
        forwards.setdefault(microbatch, read)
        yield read


def _is_transform(kind: type) -> bool:
    by_identity: object = object.__hash__
    # equal reads are looked up, so they must be hashable and compare by value
    return WeightTransform in kind.__mro__ and kind.__hash__ not in (None, by_identity)


@lru_cache(maxsize=1 << 16)
def _shared(read: WeightRead) -> WeightRead:
    """One object for equal reads: the lists of thousands of stages hold many."""
    return read


def _read_contexts(
    context: StageContext, operations: Sequence[Operation], entries: dict[tuple[int, int], int], lead: int, start: int
) -> Iterator[ReadContext]:
    newest = _updates_before(operations)
    position = {op: i for i, op in enumerate(operations)}
    whole = any(op.kind is Kind.BACKWARD and op.microbatch is None for op in operations)
    for index, op in enumerate(operations):
        if op.kind is Kind.UPDATE:
            yield ReadContext(context, op, newest[index], newest[index], 0, start + op.minibatch)
            continue
        t, j = op.minibatch, op.microbatch or 0
        there, back = newest[position[forward(t, j)]], newest[position[backward(t, None if whole else j)]]
        yield ReadContext(context, op, newest[index], entries[t, j], back - there, start + t, lead)


def _activations(operations: Sequence[Operation], reads: Sequence[WeightRead], N: int) -> list[Activations]:
    made = [Activations.DROPPED] * len(operations)
    ends = {op.like(Kind.BACKWARD): i for i, op in enumerate(operations) if op.kind is Kind.WEIGHT_GRADIENT}
    """Backward -> the index of its W, which ends it."""
    latest: dict[tuple[int, int], int] = {}
    """Microbatch -> its last forward or recomputation, whose activations its backward needs; the rest are dropped."""
    for index, op in enumerate(operations):
        if op.kind in (Kind.FORWARD, Kind.RECOMPUTATION):
            latest.update({(op.minibatch, j): index for j in op.covers(N)})
        elif op.kind is Kind.BACKWARD:
            sources, end = {latest.pop((op.minibatch, j)) for j in op.covers(N)}, ends.get(op, index)
            at_once = sources == {index - 1} and end <= index + 1
            kept = _has_same_weights([*sources, index], reads, at_once=at_once)
            for each in (*sources, index, end):
                made[each] = Activations.KEPT if kept else Activations.REBOUND
    return made


def _has_same_weights(indices: Sequence[int], reads: Sequence[WeightRead], *, at_once: bool) -> bool:
    """True if a backward finds the very tensors that its forwards or recomputations computed with."""
    # transformed weights are computed again unless they are stashed, or the backward follows at once
    transform = reads[indices[-1]].transform
    lasts = transform is None or transform.stashed or at_once
    return lasts and all(reads[each] == reads[indices[-1]] for each in indices)


def _updates_before(operations: Sequence[Operation]) -> list[int]:
    return list(accumulate((op.kind is Kind.UPDATE for op in operations), initial=0))[:-1]
