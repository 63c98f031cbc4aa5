"""Which version each operation of a list reads, and until when each is needed, known before anything runs."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Any, Protocol

from pipetrain.schedules.base import Schedule
from pipetrain.schedules.operation import Kind, Operation, backward, forward


class WeightTransform(Protocol):
    """A change of a version's weights that a method reads instead of the version itself; prints as a suffix of it."""

    def __str__(self) -> str: ...

    def apply(self, version: Any, weights: Any) -> dict[str, Any]:
        """Name -> new tensor; a weight that does not change may be left out, and is then read from the version.

        Args:
            version: a `pipetrain.weights.versions.WeightVersion`.
            weights: the stage's `pipetrain.weights.versions.Weights`.
        """
        ...


@dataclass(frozen=True, slots=True)
class WeightRead:
    """The weights that an operation reads: a version (counted from the last drain), changed by `transform` if any."""

    version: int
    transform: WeightTransform | None = None

    def __str__(self) -> str:
        return f"v{self.version}{self.transform or ''}"

    def moved(self, by: int) -> "WeightRead":
        """The same with another count of versions, such as from the start of the run."""
        return WeightRead(self.version + by, self.transform)


@dataclass(frozen=True, slots=True)
class StageContext:
    """Where a stage stands under a schedule.

    Attributes:
        stage, stages, microbatches: r, D and N.
        delay: updates that the stage makes, at most, between a minibatch's forward and its own update.
        entry_delay: the same of stage 0.
    """

    stage: int
    num_stages: int
    num_microbatches: int
    delay: int
    entry_delay: int

    @classmethod
    def under(cls, schedule: Schedule, r: int, D: int, N: int) -> "StageContext":
        """The place of stage r."""
        return cls(r, D, N, schedule.delay(r, D, N), schedule.delay(0, D, N))


@dataclass(frozen=True, slots=True)
class Moment:
    """What a stage can know when it starts a forward, recomputation or backward, all of it known before it runs.

    Attributes:
        place: the stage's.
        operation: the operation about to start.
        newest: updates that the stage has made since the last drain.
        entry: the newest version on stage 0 when this microbatch's forward started there.
        updates_until_backward: updates that the stage makes between the microbatch's forward and its backward.
        lead: microbatch steps between the recomputation, if this is one, and the backward.
        start: minibatches since the start of the run at the last drain.
    """

    context: StageContext
    operation: Operation
    newest: int
    entry: int
    updates_until_backward: int
    lead: int = 0
    start: int = 0


class ReadPolicy(Protocol):
    """The part of a method that needs no tensors: which weights an operation reads."""

    def forward(self, moment: Moment) -> WeightRead:
        """The weights that F reads."""
        ...

    def recomputation(self, moment: Moment, forward: WeightRead) -> WeightRead:
        """The weights that R reads, given what its F read."""
        ...

    def backward(self, moment: Moment, forward: WeightRead) -> WeightRead:
        """The weights that B reads, given what its F read."""
        ...


class Activations(StrEnum):
    """What becomes of the activations that a forward or recomputation computes."""

    KEPT = "kept"
    """They serve a backward that reads the same weights."""
    REBOUND = "rebound"
    """They serve a backward that finds other weights, or the same made anew."""
    DROPPED = "dropped"
    """A recomputation makes them again."""


@dataclass(frozen=True)
class Readings:
    """What every operation of one stage's list reads.

    Attributes:
        operations: the stage's list.
        reads: for each operation its WeightRead; None for an update.
        graphs: for each operation the Activations that it makes, or for a backward uses; None for an update.
        last_reader: version -> index of the last operation that reads it.
    """

    operations: list[Operation]
    reads: list[WeightRead | None]
    graphs: list[Activations | None]
    last_reader: dict[int, int]

    @property
    def change(self) -> bool:
        """Whether some backward reads other weights than the forward or recomputation that it goes through."""
        return Activations.REBOUND in self.graphs

    def needed_after(self, index: int, version: int) -> bool:
        """Whether an operation behind `index` still reads `version`."""
        return self.last_reader.get(version, -1) > index

    def released_by(self, index: int) -> list[int]:
        """The versions whose last reader is the operation at `index`."""
        read = self.reads[index]
        return [read.version] if read is not None and self.last_reader[read.version] == index else []


def readings(
    context: StageContext,
    operations: list[Operation],
    first_stage: Sequence[Operation],
    rule: ReadPolicy,
    lead: int = 0,
    start: int = 0,
) -> Readings:
    """What each operation of a stage's list reads under `rule`; `first_stage` is the list of stage 0."""
    moments = _moments(context, operations, _entries(first_stage), lead, start)
    forwards: dict[tuple[int, int], WeightRead] = {}
    reads: list[WeightRead | None] = []
    for op, moment in zip(operations, moments, strict=True):
        if moment is None:
            reads.append(None)
        else:
            microbatch = op.minibatch, op.microbatch or 0
            read = _shared(answer(rule, moment, forwards.get(microbatch)))
            forwards.setdefault(microbatch, read)
            reads.append(read)
    last_reader = {read.version: index for index, read in enumerate(reads) if read is not None}
    return Readings(operations, reads, _graphs(operations, reads, context.num_microbatches), last_reader)


def answer(rule: ReadPolicy, moment: Moment, forward: WeightRead | None) -> WeightRead:
    """What the operation of `moment` reads under `rule`; `forward` is what its F read, None where it is the F."""
    if moment.operation.kind is Kind.FORWARD:
        return rule.forward(moment)
    assert forward is not None, f"{moment.operation} before its forward"
    ask = rule.recomputation if moment.operation.kind is Kind.RECOMPUTATION else rule.backward
    return ask(moment, forward)


@lru_cache(maxsize=1 << 16)
def _shared(read: WeightRead) -> WeightRead:
    """One object for equal readings: the lists of thousands of stages hold many."""
    return read


def closed_moment(schedule: Schedule, context: StageContext, op: Operation, lead: int = 0, start: int = 0) -> Moment:
    """The moment of an operation by the schedule's closed forms, not off its list: what ran is held against it."""
    r, D, N = context.stage, context.num_stages, context.num_microbatches
    t, j = op.minibatch, op.microbatch or 0
    at_forward = schedule.newest_at_forward(r, D, N, t, j)
    if op.kind is Kind.FORWARD:
        newest = at_forward
    elif op.kind is Kind.BACKWARD:
        newest = t
    else:
        newest = t if schedule.synchronous else max(0, (t * N + j - lead) // N)
    entry = schedule.newest_at_forward(0, D, N, t, j)
    return Moment(context, op, newest, entry, t - at_forward, lead, start)


def _moments(
    context: StageContext, operations: Sequence[Operation], entries: dict[tuple[int, int], int], lead: int, start: int
) -> Iterator[Moment | None]:
    newest = _updates_before(operations)
    position = {op: i for i, op in enumerate(operations)}
    whole = any(op.kind is Kind.BACKWARD and op.microbatch is None for op in operations)
    for index, op in enumerate(operations):
        if op.kind is Kind.UPDATE:
            yield None
            continue
        t, j = op.minibatch, op.microbatch or 0
        there, back = newest[position[forward(t, j)]], newest[position[backward(t, None if whole else j)]]
        yield Moment(context, op, newest[index], entries[t, j], back - there, lead, start)


def _graphs(operations: Sequence[Operation], reads: Sequence[WeightRead | None], N: int) -> list[Activations | None]:
    graphs: list[Activations | None] = [None] * len(operations)
    latest: dict[tuple[int, int], int] = {}
    for index, op in enumerate(operations):
        if op.kind is Kind.UPDATE:
            continue
        for key in ((op.minibatch, j) for j in op.covers(N)):
            if op.kind is Kind.BACKWARD:
                source = latest.pop(key)
                graphs[index] = graphs[source] = _graph(reads[source], reads[index], adjacent=index == source + 1)
                continue
            if op.kind is Kind.RECOMPUTATION:
                graphs[latest[key]] = Activations.DROPPED
            latest[key] = index
    return graphs


def _graph(theirs: WeightRead | None, own: WeightRead | None, adjacent: bool) -> Activations:
    """Of a forward or recomputation and its backward; weights made for a reading are made again, not kept for long."""
    made = own is not None and own.transform is not None
    return Activations.KEPT if theirs == own and (adjacent or not made) else Activations.REBOUND


def _updates_before(operations: Sequence[Operation]) -> list[int]:
    counts, updates = [], 0
    for op in operations:
        counts.append(updates)
        updates += op.kind is Kind.UPDATE
    return counts


def _entries(first_stage: Sequence[Operation]) -> dict[tuple[int, int], int]:
    newest = _updates_before(first_stage)
    return {
        (op.minibatch, op.microbatch or 0): newest[i] for i, op in enumerate(first_stage) if op.kind is Kind.FORWARD
    }


def staleness(version: int, minibatch: int) -> int:
    """Updates between the version read and the minibatch's own update, which makes version `minibatch` + 1."""
    return minibatch - version
