"""A pipeline that has filled: its rate, its idle shares, what it holds."""

from collections.abc import Sequence
from dataclasses import dataclass

from pipetrain.program.pipeline_graph import SteadyPipeline
from pipetrain.program.playback import Slice
from pipetrain.schedules.base import ListSchedule
from pipetrain.schedules.operation import Kind, Operation


@dataclass(frozen=True)
class Steady:
    """The steady state between two drains.

    Attributes:
        period: time from one minibatch to the next, on average; the same for all stages.
        idle: the share of its time in which a stage's device computes nothing, by stage.
    """

    period: float
    idle: list[float]


def peak_in_flight(operations: Sequence[Operation], num_microbatches: int) -> int:
    """The most microbatches whose forward a stage has started and whose backward it has not finished."""
    held = peak = 0
    for op in operations:
        if op.kind is Kind.FORWARD:
            held += 1
            peak = max(peak, held)
        elif op.kind is Kind.BACKWARD:
            held -= len(op.covers(num_microbatches))
    return peak


def minibatches_held(schedule: ListSchedule, D: int, N: int) -> int:
    """Minibatches in flight on stage 0, all its replicas together, a part counted as one."""
    return -(-schedule.in_flight(0, D, N) // N) * schedule.replicas(D).counts[0]


def steady_state(pipeline: SteadyPipeline) -> Steady:
    """The steady state of a pipeline that has filled, exactly, however long the fill takes.

    Raises:
        ValueError: its stages wait for each other.
    """
    times, replicas = pipeline.times, pipeline.replication.replicas
    period = pipeline.events().period() / pipeline.replication.turn
    busy = [sum(times.duration(r, op) for op in cycle) for r, cycle in enumerate(pipeline.cycles)]
    return Steady(period, [max(0.0, 1.0 - of_stage / (period * m)) for of_stage, m in zip(busy, replicas, strict=True)])


def between_updates(row: Sequence[Slice], first: int, last: int) -> tuple[float, float]:
    """A worker from the update before minibatch `first` to that of `last` - 1: that time, and its idle share.

    Where `first` is 0 it begins with the worker's first operation. Replicas update once in several minibatches: theirs
    is the time of as many, by the rate of the rounds that these are in.
    """
    updates = [piece for piece in row if piece.operation.kind is Kind.UPDATE]
    before = [piece for piece in updates if piece.operation.minibatch < first]
    final = next(piece for piece in updates if piece.operation.minibatch >= last - 1)
    begin, end = before[-1].end if before else row[0].start, final.end
    covered = final.operation.minibatch - (before[-1].operation.minibatch if before else -1)
    busy = sum(max(0.0, min(piece.end, end) - max(piece.start, begin)) for piece in row)
    return (end - begin) * ((last - first) / covered), max(0.0, 1.0 - busy / (end - begin))
