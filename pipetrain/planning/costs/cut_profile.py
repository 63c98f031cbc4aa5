"""A profile cut into stages, and the stages laid out on devices."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf
from typing import Any

from pipetrain.engine.errors import ConfigError
from pipetrain.engine.program.steady_state import SharedCores
from pipetrain.engine.schedules.placement import Placement
from pipetrain.planning.costs.memory import StageSizes
from pipetrain.planning.costs.topology import DeviceRow, Topology
from pipetrain.planning.profile.profile import LoaderTime, Profile, ProfiledLayer

_OfLayer = Callable[[ProfiledLayer], float]


@dataclass(frozen=True)
class CutProfile:
    """A partition of the profiled layers into stages, with the number of devices of each stage.

    Attributes:
        stages: their indices, by stage.
        replicas: the devices of each stage, which take minibatches in turn; stages lie on the devices in order.
        placement: the stages of each device, if some have several.
        weight_share: share of its weights that a replica sends to all others of its stage for each minibatch; None if
            they average gradients.
    """

    profile: Profile
    stages: tuple[tuple[int, ...], ...]
    replicas: tuple[int, ...]
    topology: Topology
    placement: Placement | None = None
    weight_share: float | None = None

    @property
    def devices(self) -> list[int]:
        """The device of each stage, of its replicas the first."""
        return [first for first, _ in self.row.bounds]

    @property
    def num_devices(self) -> int:
        """Number of devices of all stages."""
        return sum(self.replicas) if self.placement is None else self.placement.num_processes

    @property
    def forward_s(self) -> list[float]:
        """Seconds of a minibatch's forward on a device of each stage."""
        return self._computed(lambda layer: layer.forward_s)

    @property
    def backward_s(self) -> list[float]:
        """Seconds of its backward."""
        return self._computed(lambda layer: layer.backward_s)

    def split_backward_s(self, *, split: bool = True) -> tuple[list[float], list[float]]:
        """Seconds of B, and of W, into which a backward is split; of all in B if it is not."""
        of_weights = self._computed(lambda layer: layer.of_weights_s) if split else [0.0] * len(self.stages)
        return [both - w for both, w in zip(self.backward_s, of_weights, strict=True)], of_weights

    @property
    def reading(self) -> LoaderTime:
        """Seconds in which a device of the first and one of the last stage read the data of a minibatch."""
        reading = self.profile.reading.together if self.row.is_closed else self.profile.reading
        return LoaderTime(reading.inputs_s / self.speeds[0], reading.targets_s / self.speeds[-1])

    @property
    def reading_s(self) -> list[float]:
        """The same for each stage; 0 between the two."""
        seconds = [0.0] * len(self.stages)
        seconds[0] += self.reading.inputs_s
        seconds[-1] += self.reading.targets_s
        return seconds

    @property
    def speeds(self) -> list[float]:
        """Speed of the slowest device of each stage."""
        return [min(device.speed for device in devices) for devices in self.row.devices]

    @property
    def weight_bytes(self) -> list[int]:
        """Bytes of the weights of each stage, those that its layers share once."""
        return [self.profile.weight_bytes_of(layers) for layers in self.stages]

    @property
    def trainable_bytes(self) -> list[int]:
        """Bytes of the weights among them that are trained."""
        return [self.profile.trainable.weight_bytes_of(layers) for layers in self.stages]

    @property
    def activation_bytes(self) -> list[int]:
        """Bytes that a minibatch's forward keeps in each stage, inputs from earlier stages included."""
        own = self._sums(lambda layer: layer.activation_bytes)
        return [round(kept + entering) for kept, entering in zip(own, self.entering_bytes, strict=True)]

    @property
    def entering_bytes(self) -> list[int]:
        """Bytes among them that an earlier stage counts, too: inputs that it keeps."""
        entering, stage_of = [0] * len(self.stages), self._stage_of
        for layer in {target for source, target in self.profile.edges if stage_of[source] < stage_of[target]}:
            entering[stage_of[layer]] += self.profile.layers[layer].shared_bytes
        return entering

    @cached_property
    def sent_bytes(self) -> list[int]:
        """Bytes that each stage but the last sends forward per minibatch, if messages are plain.

        These are the tensors that later stages need, each once.
        """
        return self._over_links(lambda layer: layer.output_bytes)

    @property
    def sources(self) -> set[int]:
        """The layers whose outputs pass a link."""
        stage_of = self._stage_of
        return {source for source, target in self.profile.edges if stage_of[source] != stage_of[target]}

    @cached_property
    def link_bytes(self) -> tuple[Sequence[float], Sequence[float]]:
        """Bytes of a minibatch that each link carries forward and back, in the formats of the messages."""
        if not self.profile.encodes:
            return self.sent_bytes, self.sent_bytes
        return (
            self._over_links(lambda layer: layer.forward_message.sent_bytes),
            self._over_links(lambda layer: layer.backward_message.sent_bytes),
        )

    @property
    def encoding_s(self) -> tuple[list[float], list[float]]:
        """Seconds of a minibatch in which each stage encodes and decodes, in its forward and in its backward."""
        if not self.profile.encodes:
            return [0.0] * len(self.stages), [0.0] * len(self.stages)
        return (
            self._at_ends(lambda layer: layer.forward_message.decode_s, lambda layer: layer.forward_message.encode_s),
            self._at_ends(lambda layer: layer.backward_message.encode_s, lambda layer: layer.backward_message.decode_s),
        )

    def _at_ends(self, receiving: _OfLayer, sending: _OfLayer) -> list[float]:
        """Seconds of each stage at the links before and behind it; none between stages of one device."""
        links = self.row.link_bytes_per_s
        before, behind = (
            [seconds * (speed < inf) for seconds, speed in zip(self._over_links(of), links, strict=True)]
            for of in (receiving, sending)
        )
        ends = zip([0.0, *before], [*behind, 0.0], self.speeds, strict=True)
        return [(a + b) / speed for a, b, speed in ends]

    @cached_property
    def _stage_of(self) -> dict[int, int]:
        """Layer -> its stage."""
        return {layer: r for r, layers in enumerate(self.stages) for layer in layers}

    def _over_links(self, of: Callable[[ProfiledLayer], Any]) -> list[Any]:
        """By link, the sum over the layers whose outputs pass it."""
        stage_of = self._stage_of
        last_use = dict.fromkeys(stage_of, 0)
        for source, target in self.profile.edges:
            last_use[source] = max(last_use[source], stage_of[target])
        sums = [0] * len(self.stages)
        for layer, r in stage_of.items():
            for link in range(r, last_use[layer]):
                sums[link] += of(self.profile.layers[layer])
        return sums[:-1]

    @property
    def stage_sizes(self) -> list[StageSizes[float]]:
        """Bytes of each stage; the first one's inputs are the model's."""
        states = map(self.profile.state_bytes_of, self.stages)
        inputs, outputs = [self.profile.input_bytes, *self.sent_bytes], [*self.sent_bytes, 0]
        weights = self.weight_bytes, self.trainable_bytes, states
        kept, gradients = (self.activation_bytes, self.entering_bytes), [0, *self.sent_bytes]
        put_aside, read_ahead = self._sums(lambda layer: layer.put_aside_bytes), [0] * len(self.stages)
        read_ahead[0] += self.profile.input_bytes
        read_ahead[-1] += self.profile.target_bytes
        sizes = zip(*weights, *kept, inputs, outputs, gradients, put_aside, read_ahead, strict=True)
        return [StageSizes(*map(float, each)) for each in sizes]

    @property
    def averaging_s(self) -> list[float]:
        """Seconds in which the replicas of each stage average their gradients or weights, by a ring on each level."""
        seconds = []
        for size, bounds in zip(self.trainable_bytes, self.row.bounds, strict=True):
            exchanged, members = 0.0, list(range(*bounds))
            for width, speed in zip(self.topology.workers, self.topology.bytes_per_s, strict=True):
                groups = Counter(member // width for member in members)
                largest = max(groups.values())
                exchanged += (largest - 1) / largest / speed
                members = list(groups)
            seconds.append(self._exchanged(bounds[1] - bounds[0]) * exchanged * size)
        return seconds

    def _exchanged(self, replicas: int) -> float:
        """What m replicas exchange in a round, in units of (m - 1)/m of their weights.

        They send gradients and take their means, or each sends a share of its weights to all others.
        """
        return 2.0 if self.weight_share is None else self.weight_share * replicas

    @property
    def ties(self) -> list[tuple[list[int], float]]:
        """The stages that share trainable weights, and the seconds in which each sends their gradient to the rest."""

        def seconds(stages: Sequence[int], size: int) -> float:
            devices = {self.devices[r] for r in stages}
            return (len(devices) - 1) * size / self.topology.bandwidth_between(min(devices), max(devices))

        return [(stages, seconds(stages, size)) for stages, size in self._tied_bytes]

    @property
    def _tied_bytes(self) -> list[tuple[list[int], int]]:
        """The stages that share trainable weights, ascending, and the bytes of these."""
        stage_of = self._stage_of
        shared = self.profile.trainable.shared_weights
        tied = [(sorted({stage_of[layer] for layer in each.layers}), each.weight_bytes) for each in shared]
        return [(stages, size) for stages, size in tied if len(stages) > 1 and size]

    @property
    def total_sent_bytes(self) -> float:
        """Bytes that all devices send per minibatch: activations, their gradients, and the gradients of weights.

        m replicas of a stage exchange 2(m - 1)/m of its gradients' bytes for each minibatch, each of them once for m.
        Or each sends a share of its weights to the m - 1 others. Of k stages with the same weight, each sends its
        gradient to the k - 1 others. Stages of one device send each other nothing.
        """
        exchanged = zip(self.replicas, self.trainable_bytes, strict=True)
        averaged = sum(self._exchanged(m) * (m - 1) / m * size for m, size in exchanged)
        links = zip(*self.link_bytes, self.row.link_bytes_per_s, strict=True)
        sent = sum(forward + back for forward, back, speed in links if speed < inf)
        tied = ((len({self.devices[r] for r in stages}), size) for stages, size in self._tied_bytes)
        return sent + averaged + sum(k * (k - 1) * size for k, size in tied)

    @property
    def shared_cores(self) -> SharedCores | None:
        """The cores that its devices share, or None. Each computes with the profile's threads.

        Raises:
            ConfigError: the profile is one of GPUs.
        """
        cores, device = self.topology.cores, self.profile.provenance.get("device")
        if cores is None:
            return None
        if device == "cuda":
            raise ConfigError(
                f"topology.cores={cores}: the profile was measured on cuda, where workers share no cores; "
                "topology.cores=null works"
            )
        members = self.topology.workers[0]
        devices = [device for bounds in self.row.bounds for device in range(*bounds)]
        return SharedCores(cores / self.profile.threads, [device // members for device in devices])

    def message_work_s(self, num_microbatches: int) -> list[float]:
        """Seconds in which the core of a stage receives and sends the messages of a microbatch in one direction.

        The mean of both directions; 0 if the topology has no shared cores: other cores then do this.
        """
        if self.topology.cores is None:
            return [0.0] * len(self.stages)
        sizes = [(forward + back) / 2 for forward, back in zip(*self.link_bytes, strict=True)]
        links, work = zip(sizes, self.row.link_bytes_per_s, strict=True), self.profile.message_work
        ends = [work.of(size / num_microbatches) if speed < inf else 0.0 for size, speed in links]
        return [before + behind for before, behind in zip([0.0, *ends], [*ends, 0.0], strict=True)]

    def cores_s(self, num_microbatches: int) -> float:
        """Seconds for which a minibatch occupies the cores of the busiest machine, with all work on its messages.

        0 if devices share no cores.

        Raises:
            ConfigError: the profile is one of GPUs.
        """
        if (cores := self.shared_cores) is None:
            return 0.0
        messages = [2 * num_microbatches * seconds for seconds in self.message_work_s(num_microbatches)]
        computed = self.forward_s, self.backward_s, self.reading_s, messages, *self.encoding_s
        stages = zip(*computed, self.replicas, strict=True)
        return max(cores.busy(sum(seconds) / replicas for *seconds, replicas in stages for _ in range(replicas)))

    @property
    def row(self) -> DeviceRow:
        """The devices of each stage, and the links between them."""
        return DeviceRow(self.topology, self.replicas, self.placement)

    def _computed(self, time: Callable[[ProfiledLayer], float]) -> list[float]:
        return [total / speed for total, speed in zip(self._sums(time), self.speeds, strict=True)]

    def _sums(self, of: Callable[[ProfiledLayer], float]) -> list[float]:
        return [sum(of(self.profile.layers[i]) for i in layers) for layers in self.stages]
