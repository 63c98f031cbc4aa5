"""Plays schedules process by process, by the rules of a pipeline alone: independent of `program.playback`."""

from collections.abc import Callable
from itertools import count

from pipetrain.engine.schedules import Kind, ListSchedule, Operation

Played = list[tuple[float, float, int, Operation]]
"""(start, end, stage, operation) of a process, in the order of its list."""


def unit(op: Operation) -> float:
    """1 for all but updates, which take no time."""
    return 0 if op.kind is Kind.UPDATE else 1


def process_list(schedule: ListSchedule, process: int, D: int, N: int, M: int) -> list[tuple[int, Operation]]:
    """(stage, operation) of a process: the lists of its stages, in its order."""
    lists = {r: iter(schedule.operations(r, D, N, M)) for r in schedule.placement(D).stages_of[process]}
    merged = [(r, next(lists[r])) for r in schedule.order(process, D, N, M)]
    assert not any(list(rest) for rest in lists.values())
    return merged


def played_processes(
    schedule: ListSchedule, D: int, N: int, M: int, duration: Callable[[Operation], float] = unit
) -> list[Played]:
    """What every process does when, if each operation starts once its process and its input are ready.

    Raises:
        RuntimeError: some operation waits forever.
    """
    lists = [process_list(schedule, p, D, N, M) for p in range(schedule.placement(D).num_processes)]
    played: list[Played] = [[] for _ in lists]
    ends: dict[tuple[int, Operation], float] = {(-1, op): 0 for _, op in lists[0]}
    for _ in count():
        before = len(ends)
        for mine, listed in zip(played, lists, strict=True):
            while len(mine) < len(listed):
                stage, op = listed[len(mine)]
                needed = _input_of(stage, op, D)
                if not all(each in ends for each in needed):
                    break
                start = max([mine[-1][1] if mine else 0, *(ends[each] for each in needed)])
                mine.append((start, start + duration(op), stage, op))
                ends[stage, op] = mine[-1][1]
        if len(ends) == before:
            break
    if waiting := [listed[len(mine)] for mine, listed in zip(played, lists, strict=True) if len(mine) < len(listed)]:
        raise RuntimeError(f"waiting forever: {waiting}")
    return played


def _input_of(stage: int, op: Operation, D: int) -> list[tuple[int, Operation]]:
    if op.kind is Kind.FORWARD:
        return [(stage - 1, op)]
    if op.kind is Kind.BACKWARD:
        return [(stage, op.like(Kind.FORWARD)), *([(stage + 1, op)] if stage + 1 < D else [])]
    return [(stage, op.like(Kind.BACKWARD))] if op.kind is Kind.WEIGHT_GRADIENT else []
