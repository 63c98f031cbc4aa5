"""A timeline as it is drawn: a panel for each schedule and method, a row for each worker, a box for each operation."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from pipetrain.engine.executors.pipeline_rules import PipelineRules
from pipetrain.engine.program.playback import Slice
from pipetrain.engine.program.weight_reads import staleness
from pipetrain.engine.schedules import Kind, Operation, Placement, Replicas

FILL = {
    Kind.FORWARD: ("#c6dbf3", "#a3c3e8"),
    Kind.RECOMPUTATION: ("#cfe8d5", "#a9d5b5"),
    Kind.BACKWARD: ("#fbdcb4", "#f4c285"),
    Kind.WEIGHT_GRADIENT: ("#e3d7f1", "#c8b3e2"),
}
"""Colors by parity of the minibatch, so that neighbors are distinguishable."""
CHUNKS = {
    Kind.FORWARD: ("#c6dbf3", "#3572b0"),
    Kind.RECOMPUTATION: ("#cfe8d5", "#3c8a55"),
    Kind.BACKWARD: ("#fbdcb4", "#b5651d"),
    Kind.WEIGHT_GRADIENT: ("#e3d7f1", "#6f4aa0"),
    None: ("#e6e8eb", "#5b6470"),
}
"""Colors of the first and the last stage of a process that has several; None: of any operation."""
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
        stage: whose operation it is.
    """

    operation: Operation
    read: str | None
    staleness: int | None
    start: float
    end: float
    stage: int = 0

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


class StageRows(NamedTuple):
    """The rows of a stage, or of the stages of a process: their name, the first row, and how many, one per replica."""

    name: str
    first: int
    rows: int


@dataclass(frozen=True)
class Panel:
    """A timeline.

    Attributes:
        title: names the schedule and method, or the run.
        num_microbatches: N.
        unit: of time; empty if none was given.
        rows: the boxes of every process in chronological order.
        begin, end: the part to show first, in the unit.
        messages: of every process; empty if messages were not measured.
        facts: lines of text about it.
        idle_share: of all stages together in steady state; None if there is no such state.
        replicas: of the stages; None: one of each.
        placement: the stages of each process, if some have several.
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
    placement: Placement | None = None

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
        """The rows by stage; by process if some have several."""
        if self.placement is not None:
            return [StageRows(self.placement.name(p), p, 1) for p in range(self.placement.num_processes)]
        rows = map(self.workers.workers_of, range(len(self.workers.counts)))
        return [StageRows(f"stage {r}", each.start, len(each)) for r, each in enumerate(rows)]

    @property
    def chunks(self) -> int:
        """Largest number of stages of a process."""
        return 1 if self.placement is None else max(map(len, self.placement.stages_of))

    def chunk(self, box: Box) -> int:
        """Number of a box's stage among those of its process."""
        if self.placement is None:
            return 0
        return self.placement.stages_of[self.placement.process_of(box.stage)].index(box.stage)

    def between(self, begin: float, end: float) -> "Panel":
        """The part between two times, which become 0 and `end - begin`; boxes at the borders stay whole."""

        def within(row: Sequence[Any]) -> list[Any]:
            # an update that takes no time may lie on the border
            shown = [piece for piece in row if piece.end > begin and (piece.start < end or piece.end <= end)]
            return [replace(piece, start=piece.start - begin, end=piece.end - begin) for piece in shown]

        rows, messages = (list(map(within, whole)) for whole in (self.rows, self.messages))
        return replace(self, rows=rows, messages=messages, begin=0.0, end=end - begin)


def scale_times(rows: Iterable[Sequence[Any]], factor: float) -> list[list[Any]]:
    """Rows of boxes or messages with their times in another unit."""
    return [[replace(each, start=each.start * factor, end=each.end * factor) for each in row] for row in rows]


def tone(kind: Kind | None, chunk: int, chunks: int) -> str:
    """Color of one of the stages of a process: the later the stage, the darker."""
    light, dark = ([int(color[i : i + 2], 16) for i in (1, 3, 5)] for color in CHUNKS[kind])
    share = chunk / max(1, chunks - 1)
    return "#" + "".join(f"{round(a + share * (b - a)):02x}" for a, b in zip(light, dark, strict=True))


def by_process(rows: Sequence[Sequence[Any]], placement: Placement | None) -> list[list[Any]]:
    """Rows of stages as rows of their processes, in order of time; as they are without `placement`."""
    if placement is None or not rows:
        return [list(row) for row in rows]
    merged = ([piece for r in stages for piece in rows[r]] for stages in placement.stages_of)
    return [sorted(row, key=lambda piece: (piece.start, piece.end)) for row in merged]


def note(panels: Sequence[Panel]) -> str:
    """Explanation of the labels of the boxes."""
    reads = {box.read for panel in panels for row in panel.rows for box in row if box.read}
    changes = [text for mark, text in _CHANGES.items() if any(re.search(mark, read) for read in reads)]
    return _NOTE + (f" ({'; '.join(changes)})" if changes else "")


def boxes(rules: PipelineRules, slices: Sequence[Sequence[Slice]], minibatches: int, start: int = 0) -> list[list[Box]]:
    """The boxes of each worker's slices; versions count from the start of the run.

    The lists have `minibatches` minibatches, and begin `start` minibatches into the run.
    """
    rows: list[list[Box]] = []
    for worker, (row, (r, _)) in enumerate(zip(slices, rules.replicas.places, strict=True)):
        rows.append([])
        for piece, (op, read, *_) in zip(row, rules.planned(worker, minibatches, start), strict=True):
            late = None if op.kind is Kind.UPDATE else staleness(read.version, op.minibatch // rules.replicas.counts[r])
            weights = None if late is None else str(read.moved(start))
            rows[-1].append(Box(op.moved(start), weights, late, piece.start, piece.end, r))
    return rows


def number(value: float) -> str:
    """Four digits, as a person writes them."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"
