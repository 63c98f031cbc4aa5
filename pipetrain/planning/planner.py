"""The best plan for given settings, and the plans it is compared with."""

from dataclasses import dataclass, replace
from functools import cached_property
from math import inf

from pipetrain.engine.errors import ConfigError
from pipetrain.engine.schedules.placement import Placement
from pipetrain.planning.costs.cut_profile import CutProfile
from pipetrain.planning.costs.memory import MemoryModel, StagePlace, with_states
from pipetrain.planning.costs.prediction import Prediction, predicted_stages
from pipetrain.planning.costs.stage_costs import CostModel
from pipetrain.planning.costs.topology import Device, Topology, check_parts, topology_of
from pipetrain.planning.pipeline_plan import PipelinePlan, PlannedStage
from pipetrain.planning.profile.antichains import AntichainStates
from pipetrain.planning.profile.profile import Profile
from pipetrain.planning.search.bottleneck import StageCandidate
from pipetrain.planning.search.flat import FlatSearch, even_rows
from pipetrain.planning.search.hierarchical import HierarchicalSearch
from pipetrain.planning.search.placed import PlacedSearch, link_seconds, stage_seconds
from pipetrain.runner.config.schema import TrainConfig
from pipetrain.runner.config.settings import Settings

_GIGA = 1e9
_QUICK = 5000
"""Devices times states; with more, an error gives the memory of the smallest straight plan, if there is one."""
_ROUNDING = 1e-9
_MOST_WORK = 2.3e9
"""Comparisons that take some seconds."""
_REMEDIES = (
    "train.recompute=true, a smaller train.batch_size, a method with fewer weight versions or more devices may help"
)


@dataclass(frozen=True)
class Planner:
    """Plans pipelines for a profile.

    Attributes:
        replicas: that each stage must have; None: any.
        balances_memory: True to minimize the share of the fullest device's memory first, and time second.
    """

    profile: Profile
    topology: Topology
    costs: CostModel
    memory: MemoryModel
    replicas: tuple[int, ...] | None = None
    balances_memory: bool = False

    @classmethod
    def of(cls, profile: Profile, settings: Settings) -> "Planner":
        """The planner of the sections `planner` and `topology`, and of partition.replicas.

        Raises:
            ConfigError: they contradict each other, or the model has too few layers.
        """
        counts, by_memory = settings.replicas.counts, settings.planner.objective == "memory"
        topology = topology_of(settings, profile, None if counts is None else sum(counts))
        memory = MemoryModel.of(settings)
        if (placement := memory.placement(topology.num_devices)).several:
            _check_placed(settings, profile, placement, memory)
        replicas = _required_replicas(settings, topology.num_devices, profile.most_stages(together=memory.flows))
        if len(topology.workers) > 1 and not topology.uniform and replicas is None:
            raise ConfigError(
                f"topology.workers={list(topology.workers)}: devices that differ are planned in one level, or with "
                "planner.straight=true"
            )
        if topology.cores is not None and settings.planner.cost_model == "pipedream_paper":
            raise ConfigError(
                f"topology.cores={topology.cores}: planner.cost_model=pipedream_paper is the recurrence as printed, "
                "for devices that share no cores; planner.cost_model=ring_allreduce takes shared cores"
            )
        if settings.messages.targets:
            from pipetrain.planning.profiling.message_costs import with_messages  # with torch

            profile = with_messages(profile, settings)
        profile = recomputed(with_states(profile, settings.optimizer), settings.train)
        return cls(profile, topology, CostModel.of(settings.planner), memory, replicas, by_memory)

    def best(self) -> PipelinePlan:
        """The plan that was asked for.

        Raises:
            ConfigError: no plan fits into the devices' memory.
        """
        if (placed := self._placed) is not None:
            return self._placed_plan(placed)
        plan = self._searched(self._memory_balanced(), self.replicas)
        if plan is None:
            raise ConfigError(self._shortage())
        return plan

    def _shortage(self) -> str:
        """Message with the memory of the plan that needs least."""
        devices = self.topology.num_devices
        straight = (
            self.replicas is None and devices * len(self._states) > _QUICK and devices <= len(self.profile.layers)
        )
        replicas = (1,) * devices if straight else self.replicas
        share = FlatSearch(self._states, self.topology, self.memory, replicas=replicas).least()
        setting, limits = f"topology.memory_gigabytes={self._limits}", set(self._memory_limits)
        one = f"{share * min(limits) / _GIGA:.4g} GB"
        needed = f"{share:.3g} times what a device has" if len(limits) > 1 else one
        if share <= 1:
            return (
                f"{setting}: on several levels, the search assumes that every other device holds a separate stage, "
                f"and finds no plan that fits; topology.devices={devices} without topology.workers finds one that "
                f"takes {needed}"
            )
        return f"{setting}: no plan fits; the one that needs least takes {needed} on its fullest device; {_REMEDIES}"

    @property
    def _memory_limits(self) -> list[float]:
        return [self.topology.device(each).memory_bytes or 0.0 for each in range(self.topology.num_devices)]

    @property
    def _limits(self) -> str:
        return ", ".join(f"{limit / _GIGA:.4g}" for limit in sorted(set(self._memory_limits)))

    def straight_pipeline(self) -> PipelinePlan | None:
        """The fastest pipeline with one device per stage; None if there is none, or the schedule has several."""
        return None if self._placed else self._searched(self.topology, (1,) * self.topology.num_devices)

    def data_parallel(self) -> PipelinePlan:
        """One stage on all devices, whether or not it fits."""
        everything = len(self._states) - 1
        found = StageCandidate(0, everything, 0, self.topology.num_devices, self._data_parallel_s)
        return self._plan([found], self._data_parallel_s)

    def fits(self, plan: PipelinePlan) -> bool:
        """True if each device can hold its stage."""
        return self._cut(plan).row.fits(plan.memory_bytes)

    def seen(self, plan: PipelinePlan) -> Prediction:
        """What a plan says of its pipeline, in the form of a prediction."""
        cut, period, busy = self._cut(plan), plan.time_per_minibatch_s, [stage.time_s for stage in plan.stages]
        busy = busy if plan.placement is None else plan.placement.sums(busy)
        idle = [max(0.0, 1 - each / period) for each in busy]
        none = [0.0] * len(busy)
        work = zip(cut.forward_s, none, cut.backward_s, none, cut.reading_s, strict=True)
        stages = predicted_stages(cut, work, zip(idle, idle, plan.memory_bytes, none, cut.devices, strict=True))
        links = tuple(seconds / period for seconds in link_seconds(cut))
        cores = tuple(s / period for s in [cut.cores_s(self.memory.microbatches)] if s)
        size, several = self.profile.batch_size, plan.placement is not None
        return Prediction(stages, period, size, links, cut.total_sent_bytes, cores, several)

    def _cut(self, plan: PipelinePlan) -> CutProfile:
        return CutProfile(self.profile, *plan.cut, self.topology, plan.placement)

    @cached_property
    def _states(self) -> AntichainStates:
        """Few enough for the tables of all levels but the outermost, whose time grows with the cube of their number.

        Only synchronous methods keep copies of a weight equal in several stages.
        """
        pairs = sum(members * (members - 1) // 2 for members in self.topology.workers[:-1])
        states = AntichainStates.of(self.profile).keeping(self.profile.ties if self.memory.flows else ())
        flat = self.replicas is not None or not pairs or self.memory.placement(self.topology.num_devices).several
        return states if flat else states.subsampled(int((6 * _MOST_WORK / pairs) ** (1 / 3)))

    @cached_property
    def _placed(self) -> PlacedSearch | None:
        """The search, if the schedule places several stages on each device."""
        placement = self.memory.placement(self.topology.num_devices)
        if not placement.several:
            return None
        starts = [members.bit_count() for members in self._states.members[:-1]]
        return PlacedSearch(self.profile, starts, placement, self.topology, self.memory)

    def _placed_plan(self, search: PlacedSearch) -> PipelinePlan:
        cut = search.best()
        peaks = self.memory.pipeline_bytes(cut.replicas, cut.stage_sizes, search.placement)
        if excess := search.excess(cut):
            raise ConfigError(
                f"topology.memory_gigabytes={self._limits}: no plan found fits; the smallest one found takes "
                f"{1 + excess:.3g} times the memory of its fullest device; {_REMEDIES}"
            )
        rows = zip(cut.stages, cut.replicas, stage_seconds(cut), peaks, cut.devices, strict=True)
        return self._with_baselines(tuple(PlannedStage(*row) for row in rows), search.period(cut))

    @cached_property
    def _data_parallel_s(self) -> float:
        devices = (self.topology.device(each) for each in range(self.topology.num_devices))
        time = self.profile.single_device_s / min(device.speed for device in devices)
        weights = float(self.profile.trainable.weight_bytes)
        for members, bandwidth in zip(self.topology.workers, self.topology.bytes_per_s, strict=True):
            time = self.costs.replicated(time, weights, members, bandwidth)
        everything = tuple(range(len(self.profile.layers)))
        cut = CutProfile(self.profile, (everything,), (self.topology.num_devices,), self.topology)
        return max(float(time), cut.cores_s(self.memory.microbatches))

    def _memory_balanced(self) -> Topology:
        """The devices; to balance memory, with so little of it that only balanced plans fit."""
        if not self.balances_memory:
            return self.topology
        search = FlatSearch(self._states, self.topology, self.memory, replicas=self.replicas)
        share = search.least() * (1 + _ROUNDING)
        if any(device.memory_bytes for device in self.topology.devices) and share > 1 + _ROUNDING:
            return self.topology
        devices = (self.topology.device(each) for each in range(self.topology.num_devices))
        limited = (Device(device.speed, share * (device.memory_bytes or 1.0)) for device in devices)
        return replace(self.topology, devices=tuple(limited))

    def _searched(self, topology: Topology, replicas: tuple[int, ...] | None) -> PipelinePlan | None:
        memory = self.memory if any(device.memory_bytes for device in topology.devices) else None
        searches: list[FlatSearch | HierarchicalSearch]
        if replicas is not None or len(topology.workers) == 1:
            searches = [FlatSearch(self._states, topology, memory, self.costs, replicas)]
        else:
            searches = [HierarchicalSearch(self._states, topology, self.costs, memory)]
            if memory is not None:
                # with equal numbers of replicas less may be in flight, which the search on levels does not know
                rows = list(even_rows(topology.num_devices, len(self._states) - 1))
                if searches[0].least() < inf:  # replicas cost less by one ring on all levels than by one on each
                    rows = [counts for counts in rows if max(counts) == 1]
                searches += [FlatSearch(self._states, topology, memory, self.costs, row) for row in rows]
        search = min(searches, key=lambda each: each.least())
        time = search.least()
        return None if time == inf else self._plan(search.stages(), time)

    def _plan(self, found: list[StageCandidate], time_s: float) -> PipelinePlan:
        stages = tuple(self._states.layers(stage.first, stage.last) for stage in found)
        cut = CutProfile(self.profile, stages, tuple(stage.replicas for stage in found), self.topology)
        if self._placed is None:
            kept = self.memory.pipeline_bytes(cut.replicas, cut.stage_sizes)
        else:  # all layers on each device count as the first of the stages that one device has
            first, *_ = StagePlace.row((1,) * len(self.memory.placement(1).stages_of[0]))
            kept = [round(float(self.memory.stage_bytes(first, cut.stage_sizes[0])))]
        rows = zip(cut.stages, cut.replicas, (stage.cost for stage in found), kept, strict=True)
        time_s = max(time_s, cut.cores_s(self.memory.microbatches))
        return self._with_baselines(tuple(PlannedStage(*row) for row in rows), time_s)

    def _with_baselines(self, stages: tuple[PlannedStage, ...], time_s: float) -> PipelinePlan:
        return PipelinePlan(
            stages=stages,
            time_per_minibatch_s=time_s,
            single_device_time_s=self.profile.single_device_s,
            data_parallel_time_s=self._data_parallel_s,
            labels=tuple(layer.label for layer in self.profile.layers),
        )


def _check_placed(settings: Settings, profile: Profile, placement: Placement, memory: MemoryModel) -> None:
    """Checks that pipelines of a schedule that places several stages on each device can be planned.

    Raises:
        ConfigError: they cannot.
    """
    schedule, stages = memory.phases[0].schedule, sum(map(len, placement.stages_of))
    places = f"schedule={schedule.name} places several stages on each device"
    if settings.replicas.counts is not None:
        raise ConfigError(
            f"partition.replicas={list(settings.replicas.counts)}: {places}, and none has replicas; leave it out"
        )
    if settings.planner.objective == "memory":
        raise ConfigError(f"planner.objective=memory: {places}, which is planned by time; planner.objective=time works")
    if not profile.is_chain:
        raise ConfigError(f"profile: a graph of layers, and {places}, which is planned for chains of layers alone")
    for rules in memory.phases:
        rules.schedule.check(stages, rules.microbatches)
    if stages > (parts := profile.most_stages(together=memory.flows)):
        raise ConfigError(
            f"topology: {placement.num_processes} devices; {places}, {stages} in all, and the model has {parts} parts "
            "that can be cut apart; fewer devices work"
        )


def recomputed(profile: Profile, train: TrainConfig) -> Profile:
    """The profile with a second forward before each backward, if the activations are recomputed."""
    if not train.recompute and train.recompute_boundaries is None:
        return profile
    layers = (replace(each, backward_s=each.backward_s + each.forward_s) for each in profile.layers)
    return replace(profile, layers=tuple(layers))


def _required_replicas(settings: Settings, devices: int, parts: int) -> tuple[int, ...] | None:
    """The replicas that each stage must have; None: any. `parts` is the largest possible number of stages."""
    given, straight = settings.replicas.counts, settings.planner.straight
    if given is not None:
        setting = f"partition.replicas={list(given)}"
        if straight and max(given) > 1:
            raise ConfigError(
                f"planner.straight=true with {setting}: straight pipelines have no replicas; leave one of the two out"
            )
        if devices != sum(given):
            raise ConfigError(
                f"{setting}: they take {sum(given)} devices, and `topology` has {devices}; leave topology.devices and "
                "topology.workers out, or give the same number"
            )
        check_parts(given, parts)
        return given
    if not straight and settings.planner.objective != "memory":
        return None
    if devices > parts:
        asked = "planner.straight=true" if straight else "planner.objective=memory"
        raise ConfigError(
            f"{asked} with {devices} devices: a straight pipeline has at most one for each part that can be cut "
            f"apart, and the model has {parts}; fewer devices work"
        )
    return (1,) * devices
