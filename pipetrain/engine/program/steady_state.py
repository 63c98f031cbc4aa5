"""A pipeline that has filled: its rate, its idle shares, what it holds."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pipetrain.engine.program.pipeline_graph import SteadyPipeline
from pipetrain.engine.program.playback import Slice
from pipetrain.engine.schedules.base import ListSchedule
from pipetrain.engine.schedules.operation import Kind, Operation


@dataclass(frozen=True)
class SharedCores:
    """Cores of a machine that several devices of a pipeline share, as processes on a CPU do.

    Attributes:
        at_once: number of computations that the cores of a host execute at full speed.
        hosts: index of the host of each worker.
    """

    at_once: float
    hosts: Sequence[int]

    def busy(self, of_devices: Iterable[float]) -> list[float]:
        """Time in which the cores of each host do the work of its devices, given in seconds of one core."""
        busy = [0.0] * (max(self.hosts) + 1)
        for host, seconds in zip(self.hosts, of_devices, strict=True):
            busy[host] += seconds / self.at_once
        return busy


@dataclass(frozen=True)
class Steady:
    """The steady state between two drains.

    Attributes:
        period: average time from one minibatch to the next; the same for all stages.
        idle: share of the time in which the device of each stage computes nothing.
        waiting: share of the time in which it neither computes nor reads data.
        cores_busy: share of the time in which the cores of each host compute; () if devices share no cores.
    """

    period: float
    idle: list[float]
    waiting: list[float]
    cores_busy: tuple[float, ...] = ()


def peak_in_flight(operations: Sequence[Operation], num_microbatches: int) -> int:
    """Largest number of microbatches whose forward a stage has started and whose backward it has not finished."""
    return peak_of_messages(operations, num_microbatches, Kind.FORWARD)


def peak_of_messages(operations: Sequence[Operation], num_microbatches: int, kind: Kind) -> int:
    """Largest number of messages of the microbatches whose forward a stage has started and whose backward not finished.

    They are the outputs that it sends (FORWARD), one for each microbatch, or the gradients that it receives (BACKWARD),
    one for each backward.
    """
    taken = {
        (op.minibatch, part): (op.minibatch, op.microbatch if kind is Kind.BACKWARD else part)
        for op in operations
        if op.kind is Kind.BACKWARD
        for part in op.covers(num_microbatches)
    }
    held: set[tuple[int, int | None]] = set()
    peak = 0
    for op in operations:
        messages = {taken.get(part, part) for part in ((op.minibatch, i) for i in op.covers(num_microbatches))}
        if op.kind is Kind.FORWARD:
            held |= messages
            peak = max(peak, len(held))
        elif op.kind is Kind.BACKWARD:
            held -= messages
    return peak


def minibatches_held(schedule: ListSchedule, D: int, N: int) -> int:
    """Minibatches in flight on stage 0, all its replicas together, a part counted as one."""
    return -(-schedule.in_flight(0, D, N) // N) * schedule.replicas(D).counts[0]


def steady_state(pipeline: SteadyPipeline, cores: SharedCores | None = None) -> Steady:
    """The exact steady state of a pipeline that has filled, however long the fill takes.

    Shared cores are a bound: no minibatch takes less than they need for all its computation and reading. Without
    `cores` each device has its own.

    Raises:
        ValueError: its stages wait for each other.
    """
    times, replicas = pipeline.times, pipeline.replicas
    computing, reading = (
        [sum(seconds(r, op) for op in cycle) / replicas[r] for r, cycle in enumerate(pipeline.cycles)]
        for seconds in (times.duration, times.reading)
    )
    both = [sum(each) for each in zip(computing, reading, strict=True)]
    busy = [] if cores is None else cores.busy(each for each, m in zip(both, replicas, strict=True) for _ in range(m))
    period = max(pipeline.events().period() / pipeline.turn, *busy, 0.0)
    if (placement := pipeline.placement) is not None:
        computing, both = placement.sums(computing), placement.sums(both)
    return Steady(
        period=period,
        idle=[max(0.0, 1.0 - each / period) for each in computing],
        waiting=[max(0.0, 1.0 - each / period) for each in both],
        cores_busy=tuple(each / period for each in busy),
    )


def between_updates(
    row: Sequence[Slice], first: int, last: int, process: Sequence[Slice] | None = None
) -> tuple[float, float]:
    """(time, idle share) of a worker from the update before minibatch `first` to the update of `last` - 1.

    If `first` is 0 the time begins with the worker's first operation. Replicas update once in several minibatches:
    the time is then scaled by the rate of their rounds. The idle share is that of the worker's process, whose slices
    are `process`; None: the worker is alone in it.
    """
    updates = [piece for piece in row if piece.operation.kind is Kind.UPDATE]
    before = [piece for piece in updates if piece.operation.minibatch < first]
    final = next(piece for piece in updates if piece.operation.minibatch >= last - 1)
    begin, end = before[-1].end if before else row[0].start, final.end
    covered = final.operation.minibatch - (before[-1].operation.minibatch if before else -1)
    busy = sum(max(0.0, min(piece.end, end) - max(piece.start, begin)) for piece in process or row)
    return (end - begin) * ((last - first) / covered), max(0.0, 1.0 - busy / (end - begin))
