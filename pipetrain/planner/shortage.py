"""What to do where no plan fits into the devices' memory."""

from collections.abc import Iterator

from pipetrain.planner.cut_states import CutStates
from pipetrain.planner.memory import MemoryModel
from pipetrain.planner.memory_search import LeastMemory
from pipetrain.planner.topology import Topology

_GIGA = 1e9
_QUICK = 5000
"""Devices times states; with more, only straight pipelines are looked at, as long as there are any."""


def shortage(states: CutStates, topology: Topology, memory: MemoryModel) -> str:
    """By how much the plan that needs least memory does not fit, and what would."""
    limits = sorted({topology.device(each).memory_bytes or 0.0 for each in range(topology.num_devices)})
    setting = f"topology.memory_gigabytes={', '.join(f'{limit / _GIGA:.4g}' for limit in limits)}"
    share = _least(states, topology, memory)
    needed = f"the one that needs least takes {_shown(share, limits)}"
    if len(limits) == 1:
        needed += f", {_shown(share - 1, limits)} more than there is"
    remedies = [f"{change} ({_shown(other, limits)})" for change, other in _changes(states, topology, memory)]
    return f"{setting}: no plan fits; {needed}; {_advice(remedies)}"


def _changes(states: CutStates, topology: Topology, memory: MemoryModel) -> Iterator[tuple[str, float]]:
    """The changes with which some plan fits, each with the share of a device that it would take."""
    one_version = "a method of one weight version, such as naive_async"
    single = {"train.recompute=true": memory.recomputing(), one_version: memory.of_one_version()}
    both = {f"train.recompute=true with {one_version}": memory.recomputing().of_one_version()}
    for tried in (single, both):
        shares = {change: _least(states, topology, changed) for change, changed in tried.items()}
        fitting = [(change, share) for change, share in shares.items() if share <= 1]
        yield from fitting
        if fitting:
            return


def _least(states: CutStates, topology: Topology, memory: MemoryModel) -> float:
    size = topology.num_devices * len(states)
    replicated = size <= _QUICK or topology.num_devices > len(states.profile.layers)
    return LeastMemory(states, topology, memory, straight=not replicated).share


def _shown(share: float, limits: list[float]) -> str:
    """In gigabytes where all devices have the same memory, else as a multiple of it."""
    return f"{share * limits[0] / _GIGA:.4g} GB" if len(limits) == 1 else f"{share:.3g} times what a device has"


def _advice(remedies: list[str]) -> str:
    if not remedies:
        return "neither recomputation nor a single weight version would be enough; smaller minibatches or more devices"
    return f"these would fit: {'; '.join(remedies)}"
