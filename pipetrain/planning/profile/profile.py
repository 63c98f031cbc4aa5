"""Measured training cost of each layer of a model: the basis of plans and predictions."""

import heapq
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from math import prod
from typing import Any, Self

from pipetrain.data.files.json_reader import from_json
from pipetrain.engine.errors import ConfigError, check_whole, is_whole
from pipetrain.engine.number_range import NOT_NEGATIVE, POSITIVE
from pipetrain.runner.partition.shared_weight import SharedWeight

_OF_SETTINGS = ("state_bytes", "encoded_output", "encoded_gradient")
"""Fields that are not part of a file."""


def topological_order(labels: Sequence[str], edges: Collection[tuple[int, int]]) -> list[int]:
    """Indices of the layers with all edges pointing forward; of those that could come next, the smallest.

    Args:
        labels: of the layers.
        edges: (from, to), indices of layers.

    Raises:
        ConfigError: there is a cycle.
    """
    sorter: TopologicalSorter[int] = TopologicalSorter({layer: () for layer in range(len(labels))})
    for source, target in edges:
        sorter.add(target, source)
    try:
        sorter.prepare()
    except CycleError as error:
        raise ConfigError(f"a cycle of layers: {' -> '.join(labels[layer] for layer in error.args[1])}") from None
    order: list[int] = []
    ready: list[int] = []
    while sorter.is_active():
        for layer in sorter.get_ready():
            heapq.heappush(ready, layer)
        order.append(heapq.heappop(ready))
        sorter.done(order[-1])
    return order


@dataclass(frozen=True)
class ProfiledWeight:
    """A trainable weight.

    Attributes:
        name: in the whole model.
        element_bytes: of each of its numbers.
    """

    name: str
    shape: tuple[int, ...]
    element_bytes: int

    @property
    def weight_bytes(self) -> int:
        """Bytes of all its numbers."""
        return prod(self.shape) * self.element_bytes


def renumber_shared(shared: Iterable[SharedWeight], places: Mapping[int, int]) -> tuple[SharedWeight, ...]:
    """Shared weights after each layer has moved to its place in `places`; layers at the same place become one."""
    others = Counter[tuple[int, ...]]()
    for each in shared:
        others[tuple(sorted({places[i] for i in each.layers}))] += each.weight_bytes
    return tuple(SharedWeight(*each) for each in others.items() if len(each[0]) > 1)


@dataclass(frozen=True)
class Message:
    """The message of one tensor of a minibatch.

    Attributes:
        sent_bytes: in the format of the messages.
        encode_s, decode_s: seconds that both ends take; 0 for a plain tensor.
    """

    sent_bytes: float
    encode_s: float = 0.0
    decode_s: float = 0.0


@dataclass(frozen=True)
class ProfiledLayer:
    """One layer's minibatch on one device.

    Attributes:
        output_bytes: sent forward by a cut right after this layer; 0 if unknown.
        activation_bytes: kept by its forward for its backward, without inputs that an earlier layer has counted.
        shared_bytes: of these inputs; a stage that begins with this layer keeps them, too.
        weights: its trainable weights; None if unknown.
        carries_weight: True if a placement vector counts it, which leaves norms out; None if unknown.
        state_bytes: of the optimizer's state of its weights; not part of a file, as it depends on the optimizer.
        weight_gradient_s: of its backward, the time that gradients of weights take beyond those of inputs; None if
            unknown.
        put_aside: bytes that a split backward keeps from B to W; None if unknown.
        encoded_output, encoded_gradient: its output, and the gradient of it, where a cut right after this layer sends
            them; not part of a file, as they depend on the formats of messages; None: plain.
    """

    label: str
    forward_s: float
    backward_s: float
    output_bytes: int
    weight_bytes: int
    activation_bytes: int
    shared_bytes: int = 0
    weights: tuple[ProfiledWeight, ...] | None = None
    carries_weight: bool | None = None
    state_bytes: int = 0
    weight_gradient_s: float | None = None
    put_aside: int | None = None
    encoded_output: Message | None = None
    encoded_gradient: Message | None = None

    @property
    def forward_message(self) -> Message:
        """Its output, as a cut sends it forward."""
        return self.encoded_output or Message(self.output_bytes)

    @property
    def backward_message(self) -> Message:
        """The gradient of its output, as a cut sends it back."""
        return self.encoded_gradient or Message(self.output_bytes)

    @property
    def link_bytes(self) -> float:
        """Bytes of both."""
        return self.forward_message.sent_bytes + self.backward_message.sent_bytes

    @property
    def sender_s(self) -> float:
        """Seconds in which the stage before a cut encodes the one and decodes the other."""
        return self.forward_message.encode_s + self.backward_message.decode_s

    @property
    def receiver_s(self) -> float:
        """The same of the stage behind the cut."""
        return self.forward_message.decode_s + self.backward_message.encode_s

    @property
    def of_weights_s(self) -> float:
        """Seconds of W in a split backward; if they are unknown, half of the backward of a layer with weights."""
        if not self.trainable_bytes:
            return 0.0
        return self.backward_s / 2 if self.weight_gradient_s is None else self.weight_gradient_s

    @property
    def put_aside_bytes(self) -> int:
        """Bytes that a split backward keeps from B to W.

        If they are unknown they count, in a layer with weights, as what its forward keeps and the size of its outputs.
        """
        if self.put_aside is not None:
            return self.put_aside
        kept = self.activation_bytes + self.shared_bytes + self.output_bytes
        return kept if self.trainable_bytes else 0

    @property
    def trainable_bytes(self) -> int:
        """Bytes of its trainable weights; of all, if it is unknown which these are."""
        return self.weight_bytes if self.weights is None else sum(each.weight_bytes for each in self.weights)

    @property
    def compute_s(self) -> float:
        """Seconds of its forward and backward."""
        return self.forward_s + self.backward_s


@dataclass(frozen=True)
class LoaderTime:
    """Seconds in which the first stage reads the inputs of a minibatch, and the last stage its targets."""

    inputs_s: float
    targets_s: float

    @property
    def together(self) -> "LoaderTime":
        """The same in a process that has both stages, which reads every sample once."""
        return LoaderTime(max(self.inputs_s, self.targets_s), 0.0)


@dataclass(frozen=True)
class MessageCpuTime:
    """CPU time of one end of a message of any size, and of each of its bytes, in addition to the time on the link."""

    seconds: float
    seconds_per_byte: float

    def of(self, size: float) -> float:
        """CPU seconds for a message of `size` bytes."""
        return self.seconds + self.seconds_per_byte * size


NO_READING = LoaderTime(0.0, 0.0)
NO_MESSAGE_WORK = MessageCpuTime(0.0, 0.0)


@dataclass(frozen=True)
class Profile:
    """The measured layers of a model and how they feed each other.

    Attributes:
        layers: in an order in which they can be computed.
        edges: (from, to), indices of layers; those of a chain are (0, 1), (1, 2), ...
        batch_size: samples of the minibatch; None if unknown.
        bytes_per_s: between two workers; None if it was not measured.
        provenance: subject, place and time of the measurement.
        shared_weights: of several layers.
        reading: time to read the data; 0 if it was not measured.
        message_work: of one end of a message between two workers; 0 if it was not measured.
        update_bytes_per_s: speed at which an update reads and writes weights; None if it was not measured.
        input_bytes: of the minibatch that the first layer receives; 0 if unknown.
        target_bytes: of its targets; 0 if unknown.
    """

    layers: tuple[ProfiledLayer, ...]
    edges: tuple[tuple[int, int], ...]
    batch_size: int | None = None
    bytes_per_s: float | None = None
    provenance: Mapping[str, Any] = field(default_factory=dict)
    shared_weights: tuple[SharedWeight, ...] = ()
    reading: LoaderTime = NO_READING
    message_work: MessageCpuTime = NO_MESSAGE_WORK
    update_bytes_per_s: float | None = None
    input_bytes: int = 0
    target_bytes: int = 0

    @cached_property
    def encodes(self) -> bool:
        """True if some message is not plain."""
        return any(layer.encoded_output or layer.encoded_gradient for layer in self.layers)

    @property
    def is_chain(self) -> bool:
        """True if each layer feeds only the next one."""
        return set(self.edges) == {(i, i + 1) for i in range(len(self.layers) - 1)}

    def weight_bytes_of(self, layers: Collection[int]) -> int:
        """Bytes of the weights of some layers together; those that they share count once."""
        again = sum(each.counted_again(layers) for each in self.shared_weights)
        return sum(self.layers[layer].weight_bytes for layer in layers) - again

    def state_bytes_of(self, layers: Collection[int]) -> int:
        """Bytes of the optimizer's state of the weights of some layers; of those that they share once."""
        again = sum(each.repeats(layers) * each.state_bytes for each in self.shared_weights)
        return sum(self.layers[layer].state_bytes for layer in layers) - again

    @cached_property
    def holders(self) -> dict[ProfiledWeight, tuple[int, ...]]:
        """Each trainable weight -> the layers that hold it, ascending."""
        found: dict[ProfiledWeight, list[int]] = {}
        for i, layer in enumerate(self.layers):
            for weight in layer.weights or ():
                found.setdefault(weight, []).append(i)
        return {weight: tuple(layers) for weight, layers in found.items()}

    def shared_by(self, layers: tuple[int, ...]) -> list[ProfiledWeight] | None:
        """The trainable weights that exactly these layers share; None if a layer's weights are unknown."""
        if any(self.layers[i].weights is None for i in layers):
            return None
        return [weight for weight, held_by in self.holders.items() if held_by == layers]

    @cached_property
    def trainable(self) -> "Profile":
        """The same layers with trainable weights alone; where it is unknown which these are, with all."""

        def of(shared: SharedWeight) -> int:
            weights = self.shared_by(shared.layers)
            return shared.weight_bytes if weights is None else sum(each.weight_bytes for each in weights)

        found = replace(
            self,
            layers=tuple(replace(layer, weight_bytes=layer.trainable_bytes) for layer in self.layers),
            shared_weights=tuple(replace(shared, weight_bytes=of(shared)) for shared in self.shared_weights),
        )
        return self if found == self else found

    @property
    def ties(self) -> list[tuple[int, ...]]:
        """Layers that share trainable weights; where it is unknown which are, they count as trainable."""
        return [each.layers for each in self.shared_weights if self.shared_by(each.layers) != []]

    def most_stages(self, *, together: bool) -> int:
        """Upper limit of the number of stages, exact for a chain; `together` if tied layers must be in one stage."""
        glued = [range(min(layers) + 1, max(layers) + 1) for layers in self.ties if together and self.is_chain]
        return sum(not any(cut in each for each in glued) for cut in range(len(self.layers)))

    @property
    def single_device_s(self) -> float:
        """Seconds of a minibatch on one device, including its data."""
        return sum(layer.compute_s for layer in self.layers) + self.reading.together.inputs_s

    @property
    def threads(self) -> int:
        """Threads of the measured process; 1 if unknown."""
        threads = self.provenance.get("threads")
        return threads if is_whole(threads) and threads > 0 else 1

    @property
    def cores(self) -> int | None:
        """Cores of the machine whose CPU was measured; None for another device, or if unknown."""
        cores = self.provenance.get("cores") if self.provenance.get("device") == "cpu" else None
        return cores if is_whole(cores) and cores > 0 else None

    @property
    def occasion(self) -> str | None:
        """Time of the measurement and load, such as `measured 2026-11-23 15:50 at load 0.4`; None if unknown."""
        if not isinstance(at := self.provenance.get("measured_at"), str):
            return None
        load = self.provenance.get("load_average")
        return f"measured {at[:16].replace('T', ' ')}" + (f" at load {load:g}" if load in NOT_NEGATIVE else "")

    @property
    def notes(self) -> list[str]:
        """Notes on the numbers: when they were measured."""
        return [self.occasion] if self.occasion else []

    @property
    def weight_bytes(self) -> int:
        """Bytes of the weights of the model."""
        return self.weight_bytes_of(range(len(self.layers)))

    def to_json(self) -> dict[str, Any]:
        """The content of a profile's file."""
        return {
            "batch_size": self.batch_size,
            "bytes_per_s": self.bytes_per_s,
            "message_work": asdict(self.message_work),
            "update_bytes_per_s": self.update_bytes_per_s,
            "input_bytes": self.input_bytes,
            "target_bytes": self.target_bytes,
            "reading": asdict(self.reading),
            "provenance": dict(self.provenance),
            "layers": [_stored(layer) for layer in self.layers],
            "edges": self.edges,
            "shared_weights": [_stored(each) for each in self.shared_weights],
        }

    @classmethod
    def from_json(cls, content: Any) -> Self:
        """The profile of which a file holds `to_json`.

        Raises:
            ConfigError: something is missing or of another type, an edge or a shared weight names no layer, or there is
                a cycle.
        """
        if not isinstance(content, dict) or not isinstance(content.get("layers"), list) or not content["layers"]:
            raise ConfigError("no profile: it has no layers")
        chain = [list(edge) for edge in pairwise(range(len(content["layers"])))]
        profile: Self = from_json(cls, {"edges": chain, **content})
        count = len(profile.layers)
        profile._check_numbers()
        if beyond := [edge for edge in profile.edges if max(edge) >= count]:
            raise ConfigError(f"edge {list(beyond[0])}: must be two indices of its {count} layers")
        for shared in profile.shared_weights:
            _check_shared(shared, profile.layers)
        return profile.ordered()

    def _check_numbers(self) -> None:
        if self.batch_size is not None:
            check_whole("batch_size", self.batch_size, least=1, otherwise="or null")
        for name, speed in (("bytes_per_s", self.bytes_per_s), ("update_bytes_per_s", self.update_bytes_per_s)):
            if speed is not None:
                POSITIVE.check(name, speed, "or null")

    def ordered(self) -> Self:
        """The same graph with its layers in an order in which they can be computed.

        Raises:
            ConfigError: it has no layers, or its edges form a cycle.
        """
        if not self.layers:
            raise ConfigError("no profile: it has no layers")
        order = topological_order([layer.label for layer in self.layers], self.edges)
        place = {layer: i for i, layer in enumerate(order)}
        return replace(
            self,
            layers=tuple(self.layers[i] for i in order),
            edges=tuple(sorted({(place[a], place[b]) for a, b in self.edges})),
            shared_weights=renumber_shared(self.shared_weights, place),
        )


def _check_shared(shared: SharedWeight, layers: Sequence[ProfiledLayer]) -> None:
    """Checks that a weight has several layers, and at most the bytes of each."""
    of, size = shared.layers, shared.weight_bytes
    if len(set(of)) < max(2, len(of)) or max(of) >= len(layers):
        raise ConfigError(f"a shared weight has layers={list(of)}: must be two or more of the {len(layers)} layers")
    if size > (most := min(layers[layer].weight_bytes for layer in of)):
        raise ConfigError(
            f"the weight that layers {list(of)} share has weight_bytes={size}: must be at most {most}, the weights of "
            "the smallest of them"
        )


def _stored(entry: ProfiledLayer | SharedWeight) -> dict[str, Any]:
    return {name: value for name, value in asdict(entry).items() if name not in _OF_SETTINGS}
