"""Which version each operation of a list reads, and until when each is needed, known before anything runs."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from pipetrain.schedules.operation import Kind, Operation


class Transform(Protocol):
    """A change of a version's weights that a method reads instead of the version itself; prints as a suffix of it."""

    def __str__(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Read:
    """The weights that an operation reads: a version (counted from the last drain), changed by `transform` if any."""

    version: int
    transform: Transform | None = None

    def __str__(self) -> str:
        return f"v{self.version}{self.transform or ''}"


@dataclass(frozen=True, slots=True)
class Moment:
    """What a stage can know when it starts a forward or backward, all of it read off the operation lists.

    Attributes:
        stage, stages, microbatches: r, D and N.
        operation: the forward or backward about to start.
        newest: updates that the stage has made since the last drain.
        entry: the newest version on stage 0 when this microbatch's forward started there.
        updates_until_backward: updates that the stage makes between the microbatch's forward and its backward.
    """

    stage: int
    stages: int
    microbatches: int
    operation: Operation
    newest: int
    entry: int
    updates_until_backward: int


class ReadingRule(Protocol):
    """The part of a method that needs no tensors: which weights F reads, and which B."""

    def forward(self, moment: Moment) -> Read:
        """The weights that F reads."""
        ...

    def backward(self, moment: Moment, forward: Read) -> Read:
        """The weights that B reads, given what its F read."""
        ...


@dataclass(frozen=True)
class Readings:
    """What every operation of one stage's list reads.

    Attributes:
        operations: the stage's list.
        reads: for each operation its Read; None for an update.
        last_reader: version -> index of the last operation that reads it.
        changes: the microbatches (t, j) whose backward reads other weights than their forward.
    """

    operations: list[Operation]
    reads: list[Read | None]
    last_reader: dict[int, int]
    changes: set[tuple[int, int]]

    def needed_after(self, index: int, version: int) -> bool:
        """Whether an operation behind `index` still reads `version`."""
        return self.last_reader.get(version, -1) > index

    def released_by(self, index: int) -> list[int]:
        """The versions whose last reader is the operation at `index`."""
        read = self.reads[index]
        return [read.version] if read is not None and self.last_reader[read.version] == index else []


def readings(stage: int, lists: Sequence[list[Operation]], microbatches: int, rule: ReadingRule) -> Readings:
    """What each operation of `lists[stage]` reads under `rule`; `lists` holds every stage's operations."""
    operations = lists[stage]
    newest = _updates_before(operations)
    entries = _entries(lists[0])
    position = {op: i for i, op in enumerate(operations)}
    forward_reads: dict[tuple[int, int], Read] = {}
    reads: list[Read | None] = []
    changes: set[tuple[int, int]] = set()
    for index, op in enumerate(operations):
        if op.kind is Kind.UPDATE:
            reads.append(None)
            continue
        microbatch = (op.minibatch, op.microbatch)
        start = position[Operation(Kind.FORWARD, *microbatch)]
        end = position[Operation(Kind.BACKWARD, *microbatch)]
        moment = Moment(
            stage, len(lists), microbatches, op, newest[index], entries[microbatch], newest[end] - newest[start]
        )
        if op.kind is Kind.FORWARD:
            forward_reads[microbatch] = rule.forward(moment)
            reads.append(forward_reads[microbatch])
        else:
            reads.append(rule.backward(moment, forward_reads[microbatch]))
            if reads[-1] != forward_reads[microbatch]:
                changes.add(microbatch)
    last_reader = {read.version: index for index, read in enumerate(reads) if read is not None}
    return Readings(operations, reads, last_reader, changes)


def _updates_before(operations: Sequence[Operation]) -> list[int]:
    counts, updates = [], 0
    for op in operations:
        counts.append(updates)
        updates += op.kind is Kind.UPDATE
    return counts


def _entries(first_stage: Sequence[Operation]) -> dict[tuple[int, int], int]:
    newest = _updates_before(first_stage)
    return {(op.minibatch, op.microbatch): newest[i] for i, op in enumerate(first_stage) if op.kind is Kind.FORWARD}


def staleness(version: int, minibatch: int) -> int:
    """Updates between the version read and the minibatch's own update, which makes version `minibatch` + 1."""
    return minibatch - version
