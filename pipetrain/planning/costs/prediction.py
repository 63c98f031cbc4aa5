"""Prediction of a pipeline's time, idle shares and traffic from its operation lists and a profile."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from pipetrain.engine.program.pipeline_graph import SteadyPipeline
from pipetrain.engine.program.steady_state import steady_state
from pipetrain.engine.program.times import StageTimes
from pipetrain.engine.schedules.operation import Kind
from pipetrain.planning.costs.cut_profile import CutProfile

_BOUND = 0.999
"""Busy share of the time from which a stage, a link or the cores count as the bottleneck."""


@dataclass(frozen=True)
class PredictedStage:
    """One stage, and the time of each of its devices per minibatch.

    Attributes:
        labels: of its first and last layer.
        backward_s: seconds of B, which leaves `weight_gradient_s` out.
        reading_s: seconds in which it reads data.
        idle: share of the time in which a device computes nothing, with its other stages, if it has any.
        waiting: share of the time in which it neither computes nor reads data.
        memory_bytes: peak of one device, with its other stages; None if unknown.
        weight_gradient_s: seconds of W; 0 if the schedule splits no backwards.
        process: number of its process, of its replicas' the first.
    """

    labels: tuple[str, str]
    num_layers: int
    replicas: int
    forward_s: float
    recompute_s: float
    backward_s: float
    update_s: float
    reading_s: float
    idle: float
    waiting: float
    memory_bytes: int | None
    weight_gradient_s: float = 0.0
    process: int = 0

    @property
    def work_s(self) -> dict[str, float]:
        """Seconds of each kind of work."""
        return {
            "forward": self.forward_s,
            "recomputation": self.recompute_s,
            "backward": self.backward_s,
            "weight gradient": self.weight_gradient_s,
            "update": self.update_s,
            "data": self.reading_s,
        }


@dataclass(frozen=True)
class Prediction:
    """A pipeline in its steady state.

    Attributes:
        several: True if some process has several stages.
        time_per_minibatch_s: seconds from one minibatch to the next.
        batch_size: samples of a minibatch; None if it is not known.
        link_busy: share of the time in which each link carries activations; the same for gradients.
        sent_bytes: bytes that all devices send for a minibatch.
        cores_busy: share of the time in which the cores of each host compute; () if devices share no cores.
        staleness: largest number of updates that a stage makes between the version that a forward reads and the
            update of the forward's own minibatch; None if unknown.
    """

    stages: tuple[PredictedStage, ...]
    time_per_minibatch_s: float
    batch_size: int | None
    link_busy: tuple[float, ...]
    sent_bytes: float
    cores_busy: tuple[float, ...] = ()
    several: bool = False
    staleness: int | None = None

    @property
    def samples_per_s(self) -> float | None:
        """Predicted throughput, in samples per second."""
        return None if self.batch_size is None else self.batch_size / self.time_per_minibatch_s

    @property
    def idle(self) -> float:
        """The idle share of all devices together."""
        devices = sum(stage.replicas for stage in self.stages)
        return sum(stage.idle * stage.replicas for stage in self.stages) / devices

    @property
    def bound(self) -> str:
        """Name of the bottleneck: the resource that is busy all the time."""
        if max(self.cores_busy, default=0.0) >= _BOUND:
            return "the cores"
        busiest = min(range(len(self.stages)), key=lambda r: self.stages[r].waiting)
        if 1 - self.stages[busiest].waiting >= _BOUND:
            return f"process {self.stages[busiest].process}" if self.several else f"stage {busiest}"
        link = max(range(len(self.link_busy)), key=self.link_busy.__getitem__, default=None)
        if link is not None and self.link_busy[link] >= _BOUND:
            return f"link {link}-{link + 1}"
        return "the round trip"


def predict(
    cut: CutProfile,
    pipeline: SteadyPipeline,
    memory: Sequence[int | None],
) -> Prediction:
    """The steady state of a pipeline, exactly as its operation lists define it (`steady_state`).

    Args:
        cut: the stages.
        pipeline: what they do, with their `stage_times`.
        memory: the peak of a device of each stage, in bytes; None if it is not known.

    Raises:
        ConfigError: its devices share cores, and have none.
    """
    steady, times = steady_state(pipeline, cut.shared_cores), pipeline.times
    recompute_s = [
        sum(times.duration(r, op) for op in cycle if op.kind is Kind.RECOMPUTATION)
        for r, cycle in enumerate(pipeline.cycles)
    ]
    backward_s, split = cut.split_backward_s(split=any(times.weight_gradient))
    took = zip(cut.forward_s, recompute_s, backward_s, times.update, cut.reading_s, strict=True)
    seen = zip(steady.idle, steady.waiting, memory, split, cut.devices, strict=True)
    links = zip(map(max, *cut.link_bytes), cut.row.link_bytes_per_s, strict=True)
    # the links on which messages pass at a time between m and k replicas
    wide = [min(pair) for pair in zip(cut.replicas, cut.replicas[1:], strict=False)]
    return Prediction(
        stages=predicted_stages(cut, took, seen),
        time_per_minibatch_s=steady.period,
        batch_size=cut.profile.batch_size,
        link_busy=tuple(size / speed / steady.period / n for (size, speed), n in zip(links, wide, strict=True)),
        sent_bytes=cut.total_sent_bytes,
        cores_busy=steady.cores_busy,
        several=cut.placement is not None,
    )


def predicted_stages(
    cut: CutProfile, took: Iterable[Sequence[Any]], seen: Iterable[Sequence[Any]]
) -> tuple[PredictedStage, ...]:
    """The stages of a prediction.

    Args:
        cut: the stages.
        took: seconds of the forward, recomputation, backward, update and reading of each.
        seen: further fields of each, from `idle` on.
    """
    labels = [layer.label for layer in cut.profile.layers]
    return tuple(
        PredictedStage((labels[layers[0]], labels[layers[-1]]), len(layers), replicas, *seconds, *others)
        for layers, replicas, seconds, others in zip(cut.stages, cut.replicas, took, seen, strict=True)
    )


def stage_times(
    cut: CutProfile,
    num_microbatches: int,
    update_s: Sequence[float],
    latency_s: float = 0.0,
    *,
    split: bool = False,
) -> StageTimes:
    """Times of the operations and messages of stages.

    Args:
        cut: the stages.
        num_microbatches: N.
        update_s: seconds of each stage's update, with what the method copies, predicts and corrects.
        latency_s: seconds of every message in addition to its transmission.
        split: True if the schedule splits backwards.
    """
    n, ends = num_microbatches, cut.message_work_s(num_microbatches)
    forward, backward, weight_gradient, *encoding = (
        [seconds / n for seconds in each]
        for each in (cut.forward_s, *cut.split_backward_s(split=split), *cut.encoding_s)
    )
    forward_encoding, backward_encoding = encoding
    transmission, back = (
        [size / speed / n for size, speed in zip(sizes, cut.row.link_bytes_per_s, strict=True)]
        for sizes in cut.link_bytes
    )
    times = StageTimes(
        forward=list(map(sum, zip(forward, ends, forward_encoding, strict=True))),
        recomputation=forward,
        backward=list(map(sum, zip(backward, ends, backward_encoding, strict=True))),
        update=update_s,
        num_microbatches=n,
        latency=[latency_s] * len(transmission),
        transmission=transmission,
        transmission_back=back,
        inputs=cut.reading.inputs_s,
        targets=cut.reading.targets_s,
        weight_gradient=weight_gradient,
    )
    return times.within(cut.placement)
