"""The places where a layer graph can be cut: sets of layers that can be computed before all others."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from itertools import accumulate, pairwise
from math import inf
from operator import and_, or_
from typing import Any

import numpy as np

from pipetrain.planning.profile.profile import Profile, ProfiledLayer
from pipetrain.runner.partition.shared_weight import SharedWeight

Vector = np.ndarray[Any, np.dtype[np.float64]]
Table = np.ndarray[Any, np.dtype[np.float64]]
_ROUNDING = 1e-9
MOST_STATES = 1500
"""Upper limit, as more make a search slow. In a graph with more, parallel branches are cut in one order only."""


@dataclass(frozen=True)
class AntichainStates:
    """The states of a layer graph, from no layer computed to all of them (PipeDream's antichains).

    A state is the set of layers in front of a cut; its antichain are those of them that no other of them needs. A chain
    of n layers has n + 1. The layers between two states, one of which contains the other, can be a stage.

    Attributes:
        members: of each state its layers, as the bits of a number; every state comes after the states that it contains.
    """

    profile: Profile
    members: tuple[int, ...]

    @classmethod
    def of(cls, profile: Profile, most: int = MOST_STATES) -> "AntichainStates":
        """The states of a profile's graph; where there are more than `most`, fewer of them."""
        return cls(profile, tuple(_states(*_before_and_after(profile), most)))

    def __len__(self) -> int:
        return len(self.members)

    def subsampled(self, most: int) -> "AntichainStates":
        """At most `most` of them: some evenly spread over the computation, then those whose cuts send least."""
        if len(self) <= most:
            return self
        order = np.argsort(self.compute_s, kind="stable")
        evenly = np.linspace(0, self.compute_s[-1], most // 2)
        spread = order[np.searchsorted(self.compute_s[order], evenly * (1 - _ROUNDING))]
        kept = dict.fromkeys([0, len(self) - 1, *spread.tolist(), *np.argsort(self.link_bytes, kind="stable").tolist()])
        return AntichainStates(self.profile, tuple(self.members[state] for state in sorted(list(kept)[:most])))

    def keeping(self, together: Iterable[tuple[int, ...]]) -> "AntichainStates":
        """The states that do not separate layers of a group."""
        groups = [sum(1 << layer for layer in layers) for layers in together]
        kept = (state for state in self.members if all(state & group in (0, group) for group in groups))
        return AntichainStates(self.profile, tuple(kept))

    def layers(self, first: int, last: int) -> tuple[int, ...]:
        """The layers between two states."""
        return tuple(_bits(self.members[last] & ~self.members[first]))

    @cached_property
    def follows(self) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """At [a, b], True if the layers of state a are a proper subset of the layers of state b."""
        count = len(self)
        table = np.triu(np.ones((count, count), dtype=bool), 1)
        if any(earlier & ~later for earlier, later in pairwise(self.members)):  # not a line
            for b, later in enumerate(self.members):
                table[:b, b] = [not earlier & ~later for earlier in self.members[:b]]
        return table

    @cached_property
    def compute_s(self) -> Vector:
        """Seconds of the layers before each state, forward and backward, and of the data that their ends read."""
        seconds, reading = self._sums([layer.compute_s for layer in self.profile.layers]), self.profile.reading
        seconds[1:] += reading.inputs_s
        seconds[-1] += reading.targets_s
        return seconds

    def between(self, sums: Vector, impossible: float = 0.0) -> Table:
        """At [first state, last state], the difference of two sums."""
        return np.where(self.follows, sums - sums[:, np.newaxis], impossible)

    @cached_property
    def stage_seconds(self) -> Table:
        """At [first state, last state], seconds of the layers between the two, and of encoding and decoding messages.

        Infinite if there can be no stage.
        """
        table = self.between(self.compute_s, inf)
        if self.profile.encodes:
            layers, sources = self.profile.layers, [source for source, _ in self.profile.edges]
            table += self._at_cuts(sources, [layer.receiver_s for layer in layers])[:, np.newaxis]
            table += self._at_cuts(sources, [layer.sender_s for layer in layers])
        table[0, -1] = self.profile.single_device_s
        return table

    @cached_property
    def stage_weight_bytes(self) -> Table:
        """At [first state, last state], bytes of the weights between the two, those that layers share once."""
        return self._counted_once(lambda each: each.weight_bytes)

    @cached_property
    def stage_trainable_bytes(self) -> Table:
        """At [first state, last state], bytes of the trained ones among these weights."""
        trainable = self.profile.trainable
        if trainable is self.profile:
            return self.stage_weight_bytes
        return AntichainStates(trainable, self.members).stage_weight_bytes

    @cached_property
    def stage_state_bytes(self) -> Table:
        """At [first state, last state], bytes of the optimizer's state of these weights."""
        return self._counted_once(lambda each: each.state_bytes)

    def _counted_once(self, size: Callable[[ProfiledLayer | SharedWeight], int]) -> Table:
        """At [first state, last state], the sizes of the layers between the two, those of what they share once."""
        table = self.between(self._sums([size(layer) for layer in self.profile.layers]))
        for shared in self.profile.shared_weights:
            held = self.between(self._sums([float(i in shared.layers) for i in range(len(self.profile.layers))]))
            table -= np.maximum(held - 1, 0) * size(shared)
        return table

    @cached_property
    def activation_bytes(self) -> Vector:
        """Bytes that the forwards of the layers before each state keep."""
        return self._sums([layer.activation_bytes for layer in self.profile.layers])

    @cached_property
    def put_aside_bytes(self) -> Vector:
        """Bytes that split backwards of the layers before each state keep from B to W."""
        return self._sums([layer.put_aside_bytes for layer in self.profile.layers])

    @cached_property
    def entering_bytes(self) -> Vector:
        """Bytes that layers right after a cut keep of its tensors, in addition to their `activation_bytes`."""
        shared = [layer.shared_bytes for layer in self.profile.layers]
        return (
            self._at_cuts([target for _, target in self.profile.edges], shared) if any(shared) else np.zeros(len(self))
        )

    @cached_property
    def sent_bytes(self) -> Vector:
        """Bytes that a cut sends forward: what layers after it need of the layers before it, each tensor once."""
        outputs = [layer.output_bytes for layer in self.profile.layers]
        return self._at_cuts([source for source, _ in self.profile.edges], outputs)

    @cached_property
    def link_bytes(self) -> Vector:
        """Bytes that pass a cut in both directions, in the formats of the messages."""
        if not self.profile.encodes:
            return 2 * self.sent_bytes
        return self._at_cuts([source for source, _ in self.profile.edges], self._both_directions)

    @cached_property
    def _both_directions(self) -> list[float]:
        return [layer.link_bytes for layer in self.profile.layers]

    @cached_property
    def input_bytes(self) -> Vector:
        """Bytes that a stage that begins at each state receives: what the cut sends, or the inputs of the model."""
        received = self.sent_bytes.copy()
        received[0] = self.profile.input_bytes
        return received

    def _at_cuts(self, ends: Sequence[int], values: Sequence[float]) -> Vector:
        """The sum, at each state, over the layers at one end of the edges that it cuts, each of them once."""
        if not ends:
            return np.zeros(len(self))
        order = np.argsort(ends, kind="stable")
        layers, begins = np.unique(np.array(ends)[order], return_index=True)
        sources, targets = np.array(self.profile.edges)[order].T
        held = self._held(self.members)
        cut = held[:, sources] > held[:, targets]
        total: Vector = np.logical_or.reduceat(cut, begins, axis=1) @ np.array(values, dtype=np.float64)[layers]
        return total

    @cached_property
    def antichain_bytes(self) -> Vector:
        """The same as PipeDream's optimizer counts them: outputs of the antichain, and of layers in front of it.

        These are the layers that not every member of the antichain comes after, and those that also feed a layer that
        is not before a member.
        """
        before, _ = _before_and_after(self.profile)
        consumers = [0] * len(self.profile.layers)
        for source, target in self.profile.edges:
            consumers[source] |= 1 << target
        beside = [_set_of(i for i in _bits(past) if consumers[i] & ~(past | 1 << k)) for k, past in enumerate(before)]

        def counted(state: int) -> int:
            antichain = [i for i in _bits(state) if not consumers[i] & state]
            some = _union(before[i] for i in antichain)
            every = reduce(and_, (before[i] for i in antichain), some)
            return _set_of(antichain) | _union(beside[i] for i in antichain) | some & ~every

        return self._sums(self._both_directions, list(map(counted, self.members)))

    def _sums(self, values: Sequence[float], sets: Sequence[int] = ()) -> Vector:
        """Sum of the values of the layers in each set; by default, in each state."""
        total: Vector = self._held(sets or self.members).astype(np.float64) @ np.array(values, dtype=np.float64)
        return total

    def _held(self, sets: Sequence[int]) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """At [set, layer], 1 if the set contains the layer."""
        count = len(self.profile.layers)
        rows = [list(each.to_bytes(-(-count // 8), "little")) for each in sets]
        return np.unpackbits(np.array(rows, dtype=np.uint8), axis=1, count=count, bitorder="little")


def _set_of(layers: Iterable[int]) -> int:
    return sum(1 << layer for layer in layers)


def _union(sets: Iterable[int]) -> int:
    return reduce(or_, sets, 0)


def _before_and_after(profile: Profile) -> tuple[list[int], list[int]]:
    """For each layer of a graph, bit sets of the layers that must be computed before it and after it."""
    count = len(profile.layers)
    before, after = [0] * count, [0] * count
    for source, target in sorted(profile.edges, key=lambda edge: edge[1]):
        before[target] |= before[source] | 1 << source
    for source, target in sorted(profile.edges, reverse=True):
        after[source] |= after[target] | 1 << target
    return before, after


def _states(before: Sequence[int], after: Sequence[int], most: int) -> Iterator[int]:
    """All states if they are few enough, otherwise the states of the narrowest regions, and a line through the rest."""
    regions = list(_regions(before, after))
    found = [list(_closed(before, region, base, most)) for region, base in regions]
    lines = [list(accumulate((1 << layer for layer in region), or_, initial=base))[1:] for region, base in regions]
    total = sum(map(len, found))
    for index in sorted(range(len(found)), key=lambda i: (-len(found[i]), i)):
        if total <= most:
            break
        total -= len(found[index]) - len(lines[index])
        found[index] = lines[index]
    yield 0
    for states in found:
        yield from sorted(states, key=lambda state: (state.bit_count(), state))


def _regions(before: Sequence[int], after: Sequence[int]) -> Iterator[tuple[range, int]]:
    """(layers, base): a range of layers up to the next layer that is before or after every other one.

    The base is the set of all layers before the range.
    """
    everything = (1 << len(before)) - 1
    first = 0
    for layer in range(1, len(before)):
        if before[layer] | after[layer] | 1 << layer == everything:
            yield range(first, layer), (1 << first) - 1
            first = layer
    yield range(first, len(before)), (1 << first) - 1


def _closed(before: Sequence[int], region: Sequence[int], base: int, most: int) -> set[int]:
    """Every state that adds layers of the region to the base; stops after more than `most`."""
    seen = {base}
    pending = [base]
    while pending and len(seen) <= most + 1:
        state = pending.pop()
        for layer in region:
            larger = state | 1 << layer
            if larger not in seen and not before[layer] & ~state:
                seen.add(larger)
                pending.append(larger)
    return seen - {base}


def _bits(number: int) -> Iterator[int]:
    while number:
        low = number & -number
        yield low.bit_length() - 1
        number ^= low
