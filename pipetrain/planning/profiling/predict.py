"""The predicted pipelines of a run's settings, one for each phase."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pipetrain.engine.errors import ConfigError
from pipetrain.engine.executors.pipeline_rules import PipelineRules, common_placement
from pipetrain.engine.program.pipeline_graph import SteadyPipeline
from pipetrain.engine.program.recomputation import RecomputeSegments
from pipetrain.planning.costs.cut_profile import CutProfile
from pipetrain.planning.costs.memory import MemoryModel, with_states
from pipetrain.planning.costs.prediction import Prediction, predict, stage_times
from pipetrain.planning.costs.topology import Topology, core_notes, topology_of
from pipetrain.planning.partition.automatic import stages_of_profile
from pipetrain.planning.partition.from_file import PartitionFromPlan
from pipetrain.planning.pipeline_plan import PipelinePlan, PlannedStage
from pipetrain.planning.planner import Planner
from pipetrain.planning.profile.profile import Profile
from pipetrain.planning.profile.profile_file import read_profile
from pipetrain.planning.profiling.auto_partition import AutoPartition, plan_by, update_seconds_per_byte
from pipetrain.planning.profiling.message_costs import with_messages
from pipetrain.planning.profiling.profile import profile_of, profile_of_chain
from pipetrain.runner.config.phases import PhaseSettings, naming_phase
from pipetrain.runner.config.settings import Settings
from pipetrain.runner.partition.finegrained import FineGrained
from pipetrain.runner.training.components.averaging import averaging_rule
from pipetrain.runner.training.components.pipeline import (
    build_partition_rule,
    build_pipeline_rules,
    build_recompute_segments,
    build_schedules,
    placement_of,
)
from pipetrain.runner.training.components.pipeline_checks import unfilled
from pipetrain.runner.training.components.weight_traffic import passes_of_run
from pipetrain.runner.training.planned_run import plan_run


class UnpredictableError(ConfigError):
    """No prediction is possible for a pipeline of this kind, whatever its other settings."""


_NO_LAYERS = (
    "partition=finegrained cuts layers apart, and a profile is of whole layers: nothing can be predicted; "
    "partition=even works"
)


@dataclass(frozen=True)
class ProfiledRun:
    """Settings of a run with the profile of its model cut into stages."""

    settings: Settings
    cut: CutProfile
    segments: RecomputeSegments | None

    @classmethod
    def of(
        cls, settings: Settings, *, profile: Profile | None = None, of_model: bool = False, searched: bool = False
    ) -> "ProfiledRun":
        """The stages that such a run would have; if the profile comes from a file, stages of its layers.

        Args:
            settings: of the run.
            profile: of the file, if it has been read already; None: measure, or read the file.
            of_model: True to build the model in any case: the file must be of it, and the stages are the run's.
            searched: True for the stages and replicas of the fastest pipeline, whatever `partition` says.

        Raises:
            ConfigError: the settings cannot run, or the profile cannot be cut so, or is of another model or batch size.
        """
        if profile is None and settings.profile is not None and not of_model:
            profile = read_profile(Path(settings.profile))
        if searched:
            profile = profile or profile_of(settings)
            profile = replace(profile, batch_size=profile.batch_size or settings.train.batch_size)
            stages, replicas = Planner.of(profile, settings).best().cut
        elif profile is None:
            built = plan_run(settings)
            if built.plan.finegrained:
                raise UnpredictableError(_NO_LAYERS)
            profile = profile_of_chain(settings, built.data, built.chain)
            if settings.profile is not None and profile.batch_size != (size := len(built.data.example[0])):
                raise ConfigError(
                    f"profile={settings.profile}: of minibatches of {profile.batch_size} samples, and the first one "
                    f"has {size}; `pipetrain profile` measures this one"
                )
            stages = tuple(tuple(range(*bounds)) for bounds in built.plan.bounds)
            replicas = built.plan.replicas or (1,) * len(stages)
        else:
            stages, replicas = _laid_out(settings, build_partition_rule(settings), profile)
        common_placement(build_schedules(settings.phases), len(stages))
        found = placement_of(settings, len(stages))
        placement = found if found.several and max(replicas) == 1 else None
        devices = sum(replicas) if placement is None else placement.num_processes
        topology = _checked_topology(settings, profile, devices)
        share = None if settings.replicas.delay is None else 1 / averaging_rule(settings).parts
        cut = CutProfile(with_states(profile, settings.optimizer), stages, replicas, topology, placement, share)
        cut = replace(cut, profile=with_messages(cut.profile, settings, cut.sources))
        first_layers = {layers[0]: r for r, layers in enumerate(stages)}
        return cls(settings, cut, build_recompute_segments(settings.train, len(stages), first_layers))

    def predictions(self) -> Iterator[tuple[PhaseSettings, Prediction]]:
        """Prediction of each phase.

        Raises:
            UnpredictableError: a schedule or method has no operation lists.
            ConfigError: a schedule or method cannot run on these stages.
        """
        for index, phase in enumerate(self.settings.phases):
            with naming_phase(phase.number):
                rules = self._rules(phase)
                prediction = predict(self.cut, self._pipeline(rules), self.memory(index))
                yield phase, replace(prediction, staleness=rules.largest_staleness)

    def plan(self, prediction: Prediction) -> PipelinePlan:
        """The pipeline of a prediction, as `partition=file` takes it."""
        processes = [stage.process if prediction.several else None for stage in prediction.stages]
        stages = (
            PlannedStage(layers, each.replicas, sum(each.work_s.values()) / each.replicas, each.memory_bytes or 0, p)
            for layers, each, p in zip(self.cut.stages, prediction.stages, processes, strict=True)
        )
        profile, period = self.cut.profile, prediction.time_per_minibatch_s
        labels = tuple(layer.label for layer in profile.layers)
        return PipelinePlan(tuple(stages), period, profile.single_device_s, labels=labels)

    def notes(self) -> list[str]:
        """Notes on the predictions: date of the measurements, assumed cores, pipelines that never fill."""
        stages, phases, profile = len(self.cut.stages), self.settings.phases, self.cut.profile
        schedules = [self._rules(phase).schedule for phase in phases]
        return [
            *profile.notes,
            *core_notes(self.settings, profile, self.cut.topology, self.cut.num_devices),
            *unfilled(schedules, stages, self.settings.train),
        ]

    def memory(self, phase: int) -> list[int]:
        """The peak of a device of each stage in bytes, in the phase of this index."""
        rules = MemoryModel.of(self.settings, self.segments).phases[phase]
        return MemoryModel((rules,)).pipeline_bytes(self.cut.replicas, self.cut.stage_sizes, self.cut.placement)

    def _rules(self, phase: PhaseSettings) -> PipelineRules:
        replicas, n = replace(self.settings.replicas, counts=self.cut.replicas), self.settings.train.microbatches
        rules = build_pipeline_rules(phase, len(self.cut.stages), n, self.segments, replicas)
        try:
            rules.list_schedule  # noqa: B018
        except ConfigError as error:
            raise UnpredictableError(str(error)) from error
        if rules.replicas.counts != self.cut.replicas:
            raise UnpredictableError(
                f"method={phase.choices['method']}: its replicas do not wait for each other, and no operation list "
                "says when they work; method=data_parallel can be predicted"
            )
        return rules

    def _pipeline(self, rules: PipelineRules) -> SteadyPipeline:
        moved = zip(passes_of_run(self.settings, rules), self.cut.trainable_bytes, self.cut.speeds, strict=True)
        pass_s = update_seconds_per_byte(self.settings, self.cut.profile)
        update_s = [passes * size * pass_s / speed for passes, size, speed in moved]
        latency_s, split = self.settings.topology.latency_s, rules.schedule.splits_backward
        times = stage_times(self.cut, rules.num_microbatches, update_s, latency_s, split=split)
        cycles, overlap = [rules.steady_cycle(r) for r in range(rules.num_stages)], self.settings.planner.overlap
        ties = [*self.cut.ties, *self._awaited(rules)]
        averaging_s = self.cut.averaging_s
        if self.settings.replicas.delay:
            averaging_s = [0.0] * len(averaging_s)  # no update waits for weights that come later
        return SteadyPipeline(
            cycles, times, self.cut.replicas, averaging_s, ties, overlap, self.segments, rules.steady_orders()
        )

    def _awaited(self, rules: PipelineRules) -> list[tuple[Sequence[int], float]]:
        """All stages, if clipping or loss scaling has each update wait for the gradients of all."""
        depends = self.settings.optimizer.clip_norm is not None or self.settings.train.precision == "fp16"
        return [(range(rules.num_stages), 0.0)] if depends and rules.decides_updates_together else []


def _laid_out(settings: Settings, rule: Any, profile: Profile) -> tuple[tuple[tuple[int, ...], ...], tuple[int, ...]]:
    """The layers of each stage, and its replicas, by partition.replicas or a plan."""
    if isinstance(rule, FineGrained):
        raise UnpredictableError(_NO_LAYERS)
    if isinstance(rule, PartitionFromPlan) and list(rule.plan.labels) != [layer.label for layer in profile.layers]:
        raise ConfigError(f"{rule.where}: a plan for another model than the profile's")
    if isinstance(rule, AutoPartition | PartitionFromPlan):
        plan = plan_by(settings, rule, profile) if isinstance(rule, AutoPartition) else rule.plan
        stages, planned = plan.cut
        return stages, settings.replicas.counts or planned
    stages = stages_of_profile(rule, profile, shares_weights=not MemoryModel.of(settings).flows)
    return stages, settings.replicas.counts or (1,) * len(stages)


def _checked_topology(settings: Settings, profile: Profile, needed: int) -> Topology:
    given, topology = settings.topology, topology_of(settings, profile, needed)
    if topology.num_devices < needed:
        setting = f"topology.devices={given.devices}" if given.workers is None else f"topology.workers={given.workers}"
        raise ConfigError(
            f"{setting}: {topology.num_devices} devices, and the pipeline needs {needed}; give more, or fewer stages"
        )
    return topology
