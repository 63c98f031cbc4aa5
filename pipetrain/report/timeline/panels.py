"""A timeline as it is drawn: a panel for each schedule and method, a row for each worker, a box for each operation."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pipetrain.program.planned_operations import PlannedOperation
from pipetrain.program.playback import Slice
from pipetrain.program.weight_reads import staleness
from pipetrain.schedules import Kind, Operation, Replicas

FILL = {
    Kind.FORWARD: ("#c6dbf3", "#a3c3e8"),
    Kind.RECOMPUTATION: ("#cfe8d5", "#a9d5b5"),
    Kind.BACKWARD: ("#fbdcb4", "#f4c285"),
}
"""Colors by parity of the minibatch, so that neighbors are distinguishable."""
WORDS = {
    Kind.FORWARD: "forward",
    Kind.RECOMPUTATION: "recomputation",
    Kind.BACKWARD: "backward",
    Kind.UPDATE: "update",
}
LINE, INK = "#5b6470", "#14181d"
MESSAGES = {"recv": "#8a929c", "send": "#c0392b"}
"""Lines under the boxes -> their color."""
_NOTE = "In a box: minibatch (or minibatch.microbatch); weight version read"
_CHANGES = {
    r"\+\d+$": "+s: predicted s updates ahead",
    r"-\d+δ$": "-sδ: corrected by s updates",
    r"\+\d+δ$": "+sδ: led s updates ahead by the average change",
    r"\*": "*c: scaled by c",
}
"""By a pattern of the suffix that a method gives to the version."""


@dataclass(frozen=True, slots=True)
class Box:
    """An operation of a stage.

    Attributes:
        operation: its minibatch counted from the start of the run.
        read: the weights that it reads, as `v1+2`; None for an update.
        staleness: updates between the version read and the minibatch's own; None for an update.
        start, end: in the panel's unit.
    """

    operation: Operation
    read: str | None
    staleness: int | None
    start: float
    end: float

    @property
    def name(self) -> str:
        """As logs and traces write it: F3.0@v1."""
        return str(self.operation) if self.read is None else f"{self.operation}@{self.read}"

    def label(self, num_microbatches: int) -> str:
        """Text in the box: the minibatch, and the microbatch if there are several."""
        op = self.operation
        part = op.microbatch is not None and num_microbatches > 1
        return f"{op.minibatch}.{op.microbatch}" if part else str(op.minibatch)


@dataclass(frozen=True, slots=True)
class Message:
    """Time that a stage spent on a message; `what` is recv or send."""

    what: str
    operation: Operation
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class StageRows:
    """The rows of a stage, one for each replica, or its only one.

    Attributes:
        name: of the stage.
        first: the number of its first row.
        count: how many it has.
    """

    name: str
    first: int
    count: int

    @property
    def middle(self) -> float:
        """The height of their middle, in rows."""
        return self.first + self.count / 2


@dataclass(frozen=True)
class Panel:
    """A timeline.

    Attributes:
        title: what is drawn.
        num_microbatches: N.
        unit: of time; empty where none was given.
        rows: the boxes of every stage in chronological order.
        messages: of every stage; empty if messages were not measured.
        begin, end: the part to show first, in the unit.
        facts: what to say of it, a line each.
        idle_share: of all stages together in steady state; None if there is no such state.
        replicas: of the stages; None: one of each.
    """

    title: str
    num_microbatches: int
    unit: str
    rows: list[list[Box]]
    begin: float
    end: float
    messages: list[list[Message]] = field(default_factory=list)
    facts: tuple[str, ...] = ()
    idle_share: float | None = None
    replicas: Replicas | None = None

    @property
    def heading(self) -> str:
        """The title, with the idle share if it is known."""
        if self.idle_share is None:
            return self.title
        share = f"idle share {self.idle_share:.0%}" if self.idle_share >= 0.005 else "no idle share once filled"
        return f"{self.title}: {share}"

    @property
    def workers(self) -> Replicas:
        """Workers of the rows."""
        return self.replicas or Replicas.one_each(len(self.rows))

    @property
    def stages(self) -> list[StageRows]:
        """The rows by stage."""
        rows = map(self.workers.workers_of, range(len(self.workers.counts)))
        return [StageRows(f"stage {r}", each.start, len(each)) for r, each in enumerate(rows)]

    def between(self, begin: float, end: float) -> "Panel":
        """The part between two times, which become 0 and `end - begin`; boxes at the borders stay whole."""
        rows, messages = ([_within(row, begin, end) for row in whole] for whole in (self.rows, self.messages))
        return replace(self, rows=rows, messages=messages, begin=0.0, end=end - begin)


def _within(row: Sequence[Any], begin: float, end: float) -> list[Any]:
    # an update that takes no time may lie on the border
    shown = [piece for piece in row if piece.end > begin and (piece.start < end or piece.end <= end)]
    return [replace(piece, start=piece.start - begin, end=piece.end - begin) for piece in shown]


def usual_length(panels: Sequence[Panel]) -> float:
    """The length that most boxes have, or more: where it is wide enough, their labels can be read."""
    lengths = sorted(box.end - box.start for row in panels[0].rows for box in row if box.operation.kind in FILL)
    return lengths[len(lengths) // 4] or 1.0


def scaled(row: Iterable[Any], factor: float) -> list[Any]:
    """Boxes or messages with their times in another unit."""
    return [replace(piece, start=piece.start * factor, end=piece.end * factor) for piece in row]


def kinds_of(panels: Sequence[Panel]) -> set[Kind]:
    """The kinds of operations in the boxes."""
    return {box.operation.kind for panel in panels for row in panel.rows for box in row}


def message_colors(panels: Sequence[Panel]) -> dict[str, str]:
    """Label of the lines under the boxes -> color, for the kinds of messages present."""
    present = {message.what for panel in panels for row in panel.messages for message in row}
    return {f"{what} of a message": color for what, color in MESSAGES.items() if what in present}


def note(panels: Sequence[Panel]) -> str:
    """Explanation of the labels of the boxes."""
    reads = {box.read for panel in panels for row in panel.rows for box in row if box.read}
    changes = [text for mark, text in _CHANGES.items() if any(re.search(mark, read) for read in reads)]
    return _NOTE + (f" ({'; '.join(changes)})" if changes else "")


def boxes(
    slices: Sequence[Slice], planned: Sequence[PlannedOperation], start: int = 0, replicas: int = 1
) -> Iterator[Box]:
    """The boxes of one worker, whose list begins `start` minibatches into the run; versions count from there as well.

    `replicas` is how many workers hold its stage.
    """
    for piece, (op, read, *_) in zip(slices, planned, strict=True):
        counted = op.moved(start)
        if op.kind is Kind.UPDATE:
            yield Box(counted, None, None, piece.start, piece.end)
        else:
            stale = staleness(read.version, op.minibatch // replicas)
            yield Box(counted, str(read.moved(start)), stale, piece.start, piece.end)


def number(value: float) -> str:
    """Four digits, as a person writes them."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"
