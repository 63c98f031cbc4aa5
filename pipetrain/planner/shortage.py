"""What to do where no plan fits into the devices' memory."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from pipetrain.planner.cut_states import CutStates
from pipetrain.planner.flat_search import FlatSearch, MemoryCosts
from pipetrain.planner.memory import MemoryModel
from pipetrain.planner.topology import Topology

_GIGA = 1e9
_QUICK = 5000
"""Devices times states; with more, only straight pipelines are looked at, as long as there are any."""
_FRACTIONS = (2, 4, 8, 16, 32, 64)
"""Of the minibatch, and multiples of the devices, that are tried."""


def shortage(
    states: CutStates, topology: Topology, memory: MemoryModel, replicas: tuple[int, ...] | None = None
) -> str:
    """By how much the plan that needs least memory does not fit, and what would.

    Args:
        states: where the model may be cut.
        topology: the devices.
        memory: what a stage keeps.
        replicas: of each stage; None: any.
    """
    least = partial(_least, states, topology, replicas=replicas)
    limits = sorted({topology.device(each).memory_bytes or 0.0 for each in range(topology.num_devices)})
    setting = f"topology.memory_gigabytes={', '.join(f'{limit / _GIGA:.4g}' for limit in limits)}"
    share = least(memory)
    needed = f"the one that needs least takes {_shown(share, limits)}"
    if len(limits) == 1:
        needed += f", {_shown(share - 1, limits)} more than there is"
    changes = [f"{change} ({_shown(other, limits)})" for change, other in _changes(states, topology, memory, replicas)]
    advice = (
        f"these would fit: {'; '.join(changes)}"
        if changes
        else "neither recomputation, nor a single weight version, nor smaller minibatches, nor more devices would fit"
    )
    return f"{setting}: no plan fits; {needed}; {advice}"


def _changes(
    states: CutStates, topology: Topology, memory: MemoryModel, replicas: tuple[int, ...] | None
) -> Iterator[tuple[str, float]]:
    """The smallest changes with which some plan fits, each with the share of a device that it would take."""
    least = partial(_least, states, topology, replicas=replicas)
    one_version = "a method of one weight version, such as naive_async"
    tried = {
        "train.recompute=true": least(memory.recomputing()),
        one_version: least(memory.of_one_version()),
    }
    if min(tried.values()) > 1:
        both = memory.recomputing().of_one_version()
        tried[f"train.recompute=true with {one_version}"] = least(both)
    fitting = [(change, share) for change, share in tried.items() if share <= 1]
    if fitting:
        yield from fitting
        return
    yield from _smaller_minibatches(states, topology, memory, replicas)
    if replicas is None:
        yield from _more_devices(states, topology, memory)


def _smaller_minibatches(
    states: CutStates, topology: Topology, memory: MemoryModel, replicas: tuple[int, ...] | None
) -> Iterator[tuple[str, float]]:
    for parts in _FRACTIONS:
        layers = (
            replace(
                layer,
                output_bytes=layer.output_bytes // parts,
                activation_bytes=layer.activation_bytes // parts,
                shared_bytes=layer.shared_bytes // parts,
            )
            for layer in states.profile.layers
        )
        smaller = CutStates(replace(states.profile, layers=tuple(layers)), states.members)
        if (share := _least(smaller, topology, memory, replicas)) <= 1:
            yield f"a minibatch of 1/{parts} the size", share
            return


def _more_devices(states: CutStates, topology: Topology, memory: MemoryModel) -> Iterator[tuple[str, float]]:
    for times in _FRACTIONS:
        count = topology.num_devices * times
        if not topology.uniform or count > len(states.profile.layers):
            return
        more = Topology((count,), topology.bytes_per_s[:1], (topology.device(0),) * count)
        if (share := _least(states, more, memory)) <= 1:
            yield f"{count} devices", share
            return


def _least(
    states: CutStates, topology: Topology, memory: MemoryModel, replicas: tuple[int, ...] | None = None
) -> float:
    devices = topology.num_devices
    if replicas is None and devices * len(states) > _QUICK and devices <= len(states.profile.layers):
        replicas = (1,) * devices
    return FlatSearch(MemoryCosts(states, topology, memory), replicas).least()


def _shown(share: float, limits: list[float]) -> str:
    """In gigabytes where all devices have the same memory, else as a multiple of it."""
    return f"{share * limits[0] / _GIGA:.4g} GB" if len(limits) == 1 else f"{share:.3g} times what a device has"
