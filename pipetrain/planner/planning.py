"""The plans that settings ask for: the best one, and those that it is compared with."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf

from pipetrain.config.settings import Settings
from pipetrain.errors import ConfigError
from pipetrain.planner.cut_states import CutStates
from pipetrain.planner.memory import MemoryModel, StageSizes, stages_behind
from pipetrain.planner.memory_search import LeastMemory
from pipetrain.planner.pipeline_plan import PipelinePlan, PlannedStage
from pipetrain.planner.profile import Profile
from pipetrain.planner.search import FoundStage, Place, Search
from pipetrain.planner.shortage import shortage
from pipetrain.planner.stage_costs import CostModel, cost_model
from pipetrain.planner.topology import Device, Topology

_ROUNDING = 1e-9
_MOST_WORK = 2.3e9
"""Comparisons that take some seconds."""


@dataclass(frozen=True)
class Planner:
    """Plans pipelines for a profile.

    Attributes:
        profile: what each layer costs.
        topology: the devices.
        costs: of replicas and links.
        memory: what a stage keeps.
        straight: whether the best plan may have no replicas.
        balances_memory: whether it is the one whose fullest device is least full, and only then fast.
    """

    profile: Profile
    topology: Topology
    costs: CostModel
    memory: MemoryModel
    straight: bool = False
    balances_memory: bool = False

    @classmethod
    def of(cls, profile: Profile, settings: Settings) -> "Planner":
        """The planner of the sections `planner` and `topology`.

        Raises:
            ConfigError: they contradict each other.
        """
        topology = Topology.of(settings.topology, profile.bytes_per_s)
        by_memory = settings.planner.objective == "memory"
        straight = settings.planner.straight or by_memory
        if len(topology.workers) > 1 and not topology.uniform and not straight:
            raise ConfigError(
                f"topology.workers={list(topology.workers)}: devices that differ are planned in one level, or with "
                "planner.straight=true"
            )
        memory = MemoryModel.of(settings)
        return cls(profile, topology, cost_model(settings.planner), memory, straight, by_memory)

    def best(self) -> PipelinePlan:
        """The plan that was asked for.

        Raises:
            ConfigError: the model cannot be cut so often, or no plan fits into the devices' memory.
        """
        if self.straight and self.topology.num_devices > len(self.profile.layers):
            raise ConfigError(
                f"planner.straight=true with {self.topology.num_devices} devices: the model has "
                f"{len(self.profile.layers)} layers, at most one device for each; fewer devices work"
            )
        plan = self._searched(self._roomy_enough(), straight=self.straight)
        if plan is None:
            raise ConfigError(shortage(self._states, self.topology, self.memory))
        return plan

    def straight_pipeline(self) -> PipelinePlan | None:
        """The fastest pipeline of one device for each stage; None where there is none."""
        return self._searched(self.topology, straight=True)

    def data_parallel(self) -> PipelinePlan:
        """One stage on all devices, whether or not it fits."""
        everything = len(self._states) - 1
        found = FoundStage(0, everything, Place(copies=self.topology.num_devices), self._data_parallel_s)
        return self._plan([found], self._data_parallel_s)

    def fits(self, plan: PipelinePlan) -> bool:
        """Whether each device can hold its stage."""
        device = 0
        for stage in plan.stages:
            room = (self.topology.device(device + each).memory_bytes or inf for each in range(stage.replicas))
            if stage.memory_bytes > min(room):
                return False
            device += stage.replicas
        return True

    @cached_property
    def _states(self) -> CutStates:
        """Few enough for the tables of all levels but the outermost, which take time as the cube of their number."""
        pairs = sum(members * (members - 1) // 2 for members in self.topology.workers[:-1])
        states = CutStates.of(self.profile)
        return states if self.straight or not pairs else states.thinned(int((6 * _MOST_WORK / pairs) ** (1 / 3)))

    @cached_property
    def _single_device_s(self) -> float:
        return sum(layer.compute_s for layer in self.profile.layers)

    @cached_property
    def _data_parallel_s(self) -> float:
        devices = (self.topology.device(each) for each in range(self.topology.num_devices))
        time = self._single_device_s / min(device.speed for device in devices)
        weights = float(sum(layer.weight_bytes for layer in self.profile.layers))
        for members, bandwidth in zip(self.topology.workers, self.topology.bytes_per_s, strict=True):
            time = self.costs.replicated(time, weights, members, bandwidth)
        return float(time)

    def _roomy_enough(self) -> Topology:
        """The devices; where memory is balanced, with so little of it that only balanced plans fit."""
        if not self.balances_memory:
            return self.topology
        share = LeastMemory(self._states, self.topology, self.memory).share * (1 + _ROUNDING)
        if any(device.memory_bytes for device in self.topology.devices) and share > 1 + _ROUNDING:
            return self.topology
        devices = (self.topology.device(each) for each in range(self.topology.num_devices))
        limited = (Device(device.speed, share * (device.memory_bytes or 1.0)) for device in devices)
        return replace(self.topology, devices=tuple(limited))

    def _searched(self, topology: Topology, *, straight: bool) -> PipelinePlan | None:
        limited = any(device.memory_bytes for device in topology.devices)
        search = Search(self._states, topology, self.costs, self.memory if limited else None, straight)
        time = search.time_s()
        return None if time == inf else self._plan(list(search.stages()), time)

    def _plan(self, found: list[FoundStage], time_s: float) -> PipelinePlan:
        return PipelinePlan(
            stages=tuple(self._stages(found)),
            time_per_minibatch_s=time_s,
            single_device_time_s=self._single_device_s,
            data_parallel_time_s=self._data_parallel_s,
            labels=tuple(layer.label for layer in self.profile.layers),
        )

    def _stages(self, found: list[FoundStage]) -> Iterator[PlannedStage]:
        workers = sum(stage.place.copies for stage in found)
        for r, (first, last, place, time_s) in enumerate(found):
            layers = self._states.layers(first, last)
            sizes = StageSizes(
                float(sum(self.profile.layers[layer].weight_bytes for layer in layers)),
                float(
                    sum(self.profile.layers[layer].activation_bytes for layer in layers)
                    + self._states.entering_bytes[first]
                ),
                float(self._states.sent_bytes[first]),
            )
            kept = self.memory.stage_bytes(r, stages_behind(workers, place.copies), sizes)
            yield PlannedStage(layers, place.copies, time_s, round(float(kept)))
            workers -= place.copies
