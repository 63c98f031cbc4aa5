"""Durations of the operations and messages of a pipeline."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pipetrain.engine.schedules.operation import Kind, Operation
from pipetrain.engine.schedules.placement import Placement
from pipetrain.engine.schedules.replicas import Replicas


@dataclass(frozen=True)
class StageTimes:
    """Times in any one unit.

    Attributes:
        forward, recomputation, backward: of a microbatch, by stage; N times as long for a whole minibatch. Where the
            schedule splits the backward, of its first part.
        latency: of any message, by link; link r joins stages r and r + 1.
        transmission: of a microbatch's message in addition, by link; N times as long for a whole minibatch. The link
            carries no other message of that direction meanwhile.
        replicas: of each stage; None: one of each. Replicas are equally fast, and average in no time.
        inputs: time in which the first stage reads the next minibatch's inputs, after the last forward of a minibatch.
        targets: time in which the last stage reads the next minibatch's targets, after its update.
        weight_gradient: of a microbatch, by stage, where the schedule splits the backward.
        transmission_back: as `transmission`, of gradients; None: the same.
    """

    forward: Sequence[float]
    recomputation: Sequence[float]
    backward: Sequence[float]
    update: Sequence[float]
    num_microbatches: int
    latency: Sequence[float]
    transmission: Sequence[float]
    replicas: Replicas | None = None
    inputs: float = 0.0
    targets: float = 0.0
    weight_gradient: Sequence[float] = ()
    transmission_back: Sequence[float] | None = None

    def within(self, placement: Placement | None) -> "StageTimes":
        """The same times, and none for messages between stages of one process, which are copies."""
        if placement is None:
            return self
        apart = [placement.crosses(r) for r in range(len(self.latency))]
        latency, transmission, back = (
            [seconds * passes for seconds, passes in zip(each, apart, strict=True)]
            for each in (self.latency, self.transmission, self.transmission_back or self.transmission)
        )
        return replace(self, latency=latency, transmission=transmission, transmission_back=back)

    def _stage(self, worker: int) -> int:
        return worker if self.replicas is None else self.replicas.stage_of(worker)

    def duration(self, worker: int, operation: Operation) -> float:
        """Seconds of `operation` on a worker; without replicas, workers are stages."""
        stage = self._stage(worker)
        if operation.kind is Kind.UPDATE:
            return self.update[stage]
        of_kind = {
            Kind.FORWARD: self.forward,
            Kind.RECOMPUTATION: self.recomputation,
            Kind.BACKWARD: self.backward,
            Kind.WEIGHT_GRADIENT: self.weight_gradient,
        }
        return of_kind[operation.kind][stage] * len(operation.covers(self.num_microbatches))

    def reading(self, stage: int, operation: Operation) -> float:
        """Seconds in which a stage reads data after an operation, while the operation's output is being sent."""
        ends = operation.kind is Kind.FORWARD and self.num_microbatches - 1 in operation.covers(self.num_microbatches)
        inputs = self.inputs if stage == 0 and ends else 0.0
        last = stage == len(self.forward) - 1
        return inputs + (self.targets if last and operation.kind is Kind.UPDATE else 0.0)

    def transfer(self, source: int, target: int, operation: Operation) -> float:
        """Seconds of the message that `operation` of the worker `target` waits for."""
        return self.latency[self._link(source, target)] + self.occupation(source, target, operation)

    def _link(self, source: int, target: int) -> int:
        return min(self._stage(source), self._stage(target))

    def occupation(self, source: int, target: int, operation: Operation) -> float:
        """Seconds for which that message occupies its direction of the link."""
        back = self.transmission_back if operation.kind is Kind.BACKWARD else None
        seconds = self.transmission if back is None else back
        return seconds[self._link(source, target)] * len(operation.covers(self.num_microbatches))


@dataclass(frozen=True, slots=True)
class TimeSpan:
    """A period in seconds; `start` is on the host's monotonic clock, which all processes of a machine share."""

    start: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Wait:
    """A period in which a stage sent or waited for a message; `what` is recv or send."""

    what: str
    of: Operation
    span: TimeSpan
