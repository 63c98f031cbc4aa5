"""A pipeline that has filled: its rate, its idle shares, what it holds."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from statistics import fmean

from pipetrain.program.pipeline_graph import SteadyPipeline
from pipetrain.program.playback import Slice
from pipetrain.program.repetition import repetition_of
from pipetrain.program.shared_cores import SharedCores
from pipetrain.program.shared_play import SharedPlay
from pipetrain.schedules.base import ListSchedule
from pipetrain.schedules.operation import Kind, Operation


@dataclass(frozen=True)
class Steady:
    """The steady state between two drains.

    Attributes:
        period: time from one minibatch to the next, on average; the same for all stages.
        idle: the share of its time in which a stage's device computes nothing, by stage.
        waiting: the share in which it reads no data either.
        cores_busy: the share of the time of its cores in which they compute, by host; () where devices share none.
    """

    period: float
    idle: list[float]
    waiting: list[float]
    cores_busy: tuple[float, ...] = ()


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


def steady_state(pipeline: SteadyPipeline, cores: SharedCores | None = None) -> Steady:
    """The steady state of a pipeline that has filled, exactly, however long the fill takes.

    Args:
        pipeline: what its stages do.
        cores: that its devices share; None: each computes by itself.

    Raises:
        ValueError: its stages wait for each other.
    """
    turn, replicas = pipeline.replication.turn, pipeline.replication.replicas
    if cores is None or not cores.scarce:
        period = pipeline.events().period() / turn
        computing, reading = _at_full_speed(pipeline, period)
    else:
        hosts = [host for host in cores.hosts for _ in range(2)]  # of what each device computes, and of what it reads
        played = repetition_of(SharedPlay(pipeline.computations(), hosts, cores.at_once).turns())
        period = played.turn_s / turn
        computing, reading = (_by_stage(played.busy[kind::2], replicas) for kind in range(2))
    return Steady(
        period=period,
        idle=[max(0.0, 1.0 - each) for each in computing],
        waiting=[max(0.0, 1.0 - sum(both)) for both in zip(computing, reading, strict=True)],
        cores_busy=() if cores is None else _cores_busy(pipeline, cores, period),
    )


def _at_full_speed(pipeline: SteadyPipeline, period: float) -> tuple[list[float], list[float]]:
    """The shares of its time that a device of each stage would compute, and read data, if it shared no cores."""
    times, replicas = pipeline.times, pipeline.replication.replicas
    computing, reading = (
        [sum(seconds(r, op) for op in cycle) / (period * replicas[r]) for r, cycle in enumerate(pipeline.cycles)]
        for seconds in (times.duration, times.reading)
    )
    return computing, reading


def _by_stage(shares: Sequence[float], replicas: Sequence[int]) -> list[float]:
    """Means over the devices of each stage."""
    ends = list(accumulate(replicas, initial=0))
    return [fmean(shares[first:end]) for first, end in pairwise(ends)]


def _cores_busy(pipeline: SteadyPipeline, cores: SharedCores, period: float) -> tuple[float, ...]:
    busy = [0.0] * (max(cores.hosts) + 1)
    of_stages = zip(*_at_full_speed(pipeline, period), pipeline.replication.replicas, strict=True)
    of_devices = (computing + reading for computing, reading, m in of_stages for _ in range(m))
    for host, share in zip(cores.hosts, of_devices, strict=True):
        busy[host] += share / cores.at_once
    return tuple(busy)


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
