"""Draws operation lists as text: a stage x time grid, one column per unit of time."""

from collections.abc import Sequence

from pipetrain.program.playback import DeadlockError, Slice, play
from pipetrain.schedules.operation import Kind, Operation
from pipetrain.schedules.replicas import Replicas


def unit_duration(_stage: int, operation: Operation) -> float:
    """One unit for a forward or a backward; an update takes no time."""
    return 0.0 if operation.kind is Kind.UPDATE else 1.0


def grid(
    lists: Sequence[Sequence[Operation]],
    guilty: tuple[int, int | None] | None = None,
    replicas: Replicas | None = None,
) -> str:
    """The lists as a grid; where they deadlock, what ran until then, each guilty cell marked `!`.

    `guilty` is a worker and the place in its list that a check blames instead, if any; without `replicas` workers are
    stages.

    Two stages under `gpipe` with N = 2, one minibatch::

        stage 0  F0.0 F0.1  .    .   B0.0 B0.1
        stage 1   .   F0.0 F0.1 B0.0 B0.1
    """
    stuck: dict[int, Operation] = {}
    workers = replicas or Replicas.one_each(len(lists))
    try:
        played = play(lists, unit_duration, replicas=workers)
    except DeadlockError as error:
        played, stuck = error.played, error.stuck
    if guilty is None:
        return _draw(played, stuck, None, workers)
    r, index = guilty
    unplayed = index is not None and index >= len(played[r])
    return _draw(played, {r: lists[r][index]} if unplayed and index is not None else {}, guilty, workers)


def _draw(
    played: Sequence[Sequence[Slice]],
    stuck: dict[int, Operation],
    guilty: tuple[int, int | None] | None,
    workers: Replicas,
) -> str:
    rows = []
    for r, slices in enumerate(played):
        cells: list[str] = []
        for index, piece in enumerate(slices):
            marked = (r, index) == guilty
            if piece.operation.kind is not Kind.UPDATE or marked:
                cells += ["."] * (int(piece.start) - len(cells)) + [f"{'!' if marked else ''}{piece.operation}"]
        if r in stuck:
            cells.append(f"!{stuck[r]}")
        rows.append(cells)
    width = max((len(cell) for cells in rows for cell in cells), default=0)
    names = [workers.name(worker) for worker in range(len(rows))]
    longest = max(map(len, names))
    return "\n".join(
        f"{name:{longest}}  " + " ".join(cell.center(width) for cell in cells).rstrip()
        for name, cells in zip(names, rows, strict=True)
    )
