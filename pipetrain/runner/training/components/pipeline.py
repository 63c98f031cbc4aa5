"""The pipeline of a run: partition rule, schedule and method of each phase, recomputed segments."""

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from pipetrain.engine.errors import ConfigError
from pipetrain.engine.executors.pipeline_rules import Phase, PipelineRules
from pipetrain.engine.methods import Method
from pipetrain.engine.models.chain import LayerChain
from pipetrain.engine.models.weight_units import weight_units
from pipetrain.engine.program.custom_schedule import check_attributes, check_custom_schedule
from pipetrain.engine.program.recomputation import RecomputeSegments
from pipetrain.engine.schedules import Placement, Schedule
from pipetrain.runner.config.choices import names_of_family
from pipetrain.runner.config.phases import PhaseSettings, naming_phase
from pipetrain.runner.config.schema import TrainConfig
from pipetrain.runner.config.settings import ReplicaSettings, Settings
from pipetrain.runner.partition.finegrained import stages_of_layers
from pipetrain.runner.partition.rules import Even
from pipetrain.runner.partition.run_plan import Plan
from pipetrain.runner.training.components.replicas import replicated
from pipetrain.runner.training.timetable import Timetable

_ONE_EACH = ReplicaSettings()


def build_partition_rule(settings: Settings) -> Any:
    """The rule that cuts the model into stages, with `cuts`, or with a `plan_of` the whole run."""
    rule = settings.partition.build()
    if not any(callable(getattr(rule, name, None)) for name in ("cuts", "plan_of")):
        raise settings.partition.wrong_type_error(rule, "a partition rule")
    if not isinstance(rule, Even):
        return rule
    counts = settings.replicas.counts or ()
    if len(counts) == rule.stages:  # another count of stages is refused with the schedule, by name
        return replace(rule, replicas=counts)
    placement = placement_of(settings, rule.stages)
    return replace(rule, placement=placement) if placement.several else rule


def placement_of(settings: Settings, num_stages: int) -> Placement:
    """The stages of each process, which have no replicas; one each if the schedule cannot run on so many stages."""
    with contextlib.suppress(ConfigError):  # which a run raises
        schedule = build_schedule(settings.phases[0])
        schedule.check(num_stages, settings.train.microbatches)
        return schedule.placement(num_stages)
    return Placement.one_each(num_stages)


def build_phases(
    settings: Settings,
    timetable: Timetable,
    num_stages: int,
    segments: RecomputeSegments | None = None,
    replicas: ReplicaSettings = _ONE_EACH,
) -> list[Phase]:
    """The phases of a run, one after the other."""
    starts = [0, *timetable.phase_ends[:-1]]
    phases = []
    for phase, start, end in zip(settings.phases, starts, timetable.phase_ends, strict=True):
        with naming_phase(phase.number):
            rules = build_pipeline_rules(phase, num_stages, settings.train.microbatches, segments, replicas)
            if settings.optimizer.lr_by_delay is not None:
                rules.divide_rates_by_delay(settings.optimizer.lr_by_delay)
        phases.append(Phase(rules, start, end))
    return phases


def build_schedule(phase: PhaseSettings) -> Schedule:
    """The schedule of a phase; raises a ConfigError if the target refuses an option, or returns something else."""
    schedule = phase.schedule.build()
    if not isinstance(schedule, Schedule):
        raise phase.schedule.wrong_type_error(schedule, "a pipetrain.Schedule")
    with phase.schedule.naming():
        check_attributes(schedule)
    return schedule


def build_schedules(phases: Sequence[PhaseSettings]) -> list[Schedule]:
    """The schedules of all phases; raises as `build_schedule`."""
    schedules = []
    for phase in phases:
        with naming_phase(phase.number):
            schedules.append(build_schedule(phase))
    return schedules


def build_pipeline_rules(
    phase: PhaseSettings,
    num_stages: int,
    num_microbatches: int,
    segments: RecomputeSegments | None,
    replicas: ReplicaSettings = _ONE_EACH,
) -> PipelineRules:
    """The schedule and method of a phase."""
    schedule, method = build_schedule(phase), phase.method.build()
    if not isinstance(method, Method):
        raise phase.method.wrong_type_error(method, "a pipetrain.Method")
    if method.family != schedule.family:
        raise ConfigError(
            f"method={phase.choices['method']} does not work with schedule={phase.choices['schedule']}; use "
            f"schedule={_either(names_of_family('schedule', method.family))}, or "
            f"method={_either(names_of_family('method', schedule.family))}"
        )
    with phase.schedule.naming():
        check_custom_schedule(schedule, num_stages, num_microbatches)
    if method.independent_replicas == 1:
        schedule = replicated(schedule, num_stages, replicas)
    return PipelineRules(schedule, method, num_stages, num_microbatches, segments)


def _either(names: Sequence[str]) -> str:
    return " or ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def build_recompute_segments(
    train: TrainConfig, num_stages: int, stage_of: Mapping[int, int]
) -> RecomputeSegments | None:
    """Groups of stages that recompute together; None if none does. `stage_of` maps the first layer of each to it."""
    layers = train.recompute_boundaries
    if layers is None:
        return RecomputeSegments.of_single_stages(num_stages) if train.recompute else None
    if wrong := [layer for layer in layers if layer not in stage_of]:
        raise ConfigError(
            f"train.recompute_boundaries={layers}: layer {wrong[0]} is not the first layer of a stage; stages begin at "
            f"layers {', '.join(map(str, stage_of))}"
        )
    return RecomputeSegments(tuple(sorted({0, *(stage_of[layer] for layer in layers)})), num_stages)


def build_planned_phases(settings: Settings, timetable: Timetable, plan: Plan, chain: LayerChain) -> list[Phase]:
    """The phases of a run with a plan, and the stages that recompute together.

    Raises:
        ConfigError: as `build_phases`, also for replicas that the plan has chosen; or a boundary of segments is not the
            first layer of a stage.
    """
    stage_of = {first: r for r, (first, _) in enumerate(plan.bounds)}
    if plan.finegrained:
        stage_of = stages_of_layers(weight_units(chain), plan.bounds)
    segments = build_recompute_segments(settings.train, len(plan.bounds), stage_of)
    replicas = replace(settings.replicas, counts=plan.replicas)
    try:
        return build_phases(settings, timetable, len(plan.bounds), segments, replicas)
    except ConfigError as error:
        if replicas == settings.replicas:
            raise
        build_phases(settings, timetable, len(plan.bounds), segments)  # raises if they are not the reason
        path = settings.partition.options.get("path")
        where = "partition=auto" if path is None else f"partition.path={path}"
        raise ConfigError(
            f"{where}: its stages have replicas, {'-'.join(map(str, replicas.counts or ()))}: {error}; or "
            "planner.straight=true plans without"
        ) from error
