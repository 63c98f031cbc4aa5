"""The pipeline of a run: partition rule, schedule and method of each phase, replicas, recomputed segments."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pipetrain.engine.errors import ConfigError, as_configured, is_whole
from pipetrain.engine.executors.pipeline_rules import Phase, PipelineRules
from pipetrain.engine.methods import Method
from pipetrain.engine.program.custom_schedule import check_attributes, check_custom_schedule
from pipetrain.engine.program.recomputation import RecomputeSegments
from pipetrain.engine.schedules import ListSchedule, Replicas, Schedule
from pipetrain.engine.schedules.round_robin import RoundRobin
from pipetrain.runner.config.choices import names_of_family
from pipetrain.runner.config.composition import composed
from pipetrain.runner.config.instantiate import Target
from pipetrain.runner.config.phases import PhaseSettings, naming_phase
from pipetrain.runner.config.schema import TrainConfig
from pipetrain.runner.config.settings import ReplicaSettings, Settings
from pipetrain.runner.partition.rules import Even
from pipetrain.runner.partition.run_plan import replica_counts
from pipetrain.runner.training.timetable import Timetable

_ONE_EACH = ReplicaSettings()


def build_partition_rule(settings: Settings) -> Any:
    """The rule that cuts the model into stages, with `cuts`, or with a `plan_of` the whole run.

    Raises:
        ConfigError: the target refuses an option, or returns something else.
    """
    rule = settings.partition.build()
    if not any(callable(getattr(rule, name, None)) for name in ("cuts", "plan_of")):
        raise settings.partition.wrong_type_error(rule, "a partition rule")
    counts = settings.replicas.counts or ()
    # another count of stages is refused with the schedule, by name
    return replace(rule, replicas=counts) if isinstance(rule, Even) and len(counts) == rule.stages else rule


def build_phases(
    settings: Settings,
    timetable: Timetable,
    num_stages: int,
    segments: RecomputeSegments | None,
    replicas: ReplicaSettings = _ONE_EACH,
) -> list[Phase]:
    """The phases of a run, one after the other.

    Raises:
        ConfigError: a schedule or method takes other settings, or they do not go together.
    """
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
    """The schedule of a phase.

    Raises:
        ConfigError: the target refuses an option, or returns something else.
    """
    schedule = phase.schedule.build()
    if not isinstance(schedule, Schedule):
        raise phase.schedule.wrong_type_error(schedule, "a pipetrain.Schedule")
    with _naming_target(phase.schedule):
        check_attributes(schedule)
    return schedule


@contextlib.contextmanager
def _naming_target(target: Target) -> Iterator[None]:
    """Puts the target's setting before the message of a ConfigError."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"{target.setting}: {error}") from error


def build_pipeline_rules(
    phase: PhaseSettings,
    num_stages: int,
    num_microbatches: int,
    segments: RecomputeSegments | None,
    replicas: ReplicaSettings = _ONE_EACH,
) -> PipelineRules:
    """The schedule and method of a phase.

    Raises:
        ConfigError: one takes other settings, or they do not go together.
    """
    schedule, method = build_schedule(phase), phase.method.build()
    if not isinstance(method, Method):
        raise phase.method.wrong_type_error(method, "a pipetrain.Method")
    if method.family != schedule.family:
        raise ConfigError(
            f"method={phase.choices['method']} does not work with schedule={phase.choices['schedule']}; use "
            f"schedule={_either(names_of_family('schedule', method.family))}, or "
            f"method={_either(names_of_family('method', schedule.family))}"
        )
    with _naming_target(phase.schedule):
        check_custom_schedule(schedule, num_stages, num_microbatches)
    if method.independent_replicas == 1:
        schedule = replicated(schedule, num_stages, replicas)
    return PipelineRules(schedule, method, num_stages, num_microbatches, segments)


def replicated(schedule: Schedule, num_stages: int, replicas: ReplicaSettings) -> Schedule:
    """The schedule on so many replicas of each stage; itself where each has one.

    Raises:
        ConfigError: there are not as many numbers as stages, or the schedule has no lists.
    """
    counts = replicas.counts
    if counts is None:
        return schedule
    if len(counts) != num_stages:
        raise ConfigError(f"partition.replicas={list(counts)}: a number for each of {num_stages} stages is needed")
    if max(counts) == 1:
        return schedule
    if not isinstance(schedule, ListSchedule):
        raise ConfigError(
            f"partition.replicas={list(counts)}: schedule={schedule.name} is run by torch.distributed.pipelining, "
            "which knows no replicas; schedule=gpipe and 1f1b_flush do"
        )
    return RoundRobin(schedule, Replicas(counts), replicas.scale_lr)


def _either(names: Sequence[str]) -> str:
    return " or ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def build_recompute_segments(
    train: TrainConfig, num_stages: int, stage_of: Mapping[int, int]
) -> RecomputeSegments | None:
    """Groups of stages that recompute together; None if no stage recomputes.

    Args:
        train: the settings of recomputation.
        num_stages: D.
        stage_of: first layer of a stage -> the stage.

    Raises:
        ConfigError: a boundary is not the first layer of a stage.
    """
    layers = train.recompute_boundaries
    if layers is None:
        return RecomputeSegments.of_single_stages(num_stages) if train.recompute else None
    if wrong := [layer for layer in layers if layer not in stage_of]:
        raise ConfigError(
            f"train.recompute_boundaries={layers}: layer {wrong[0]} is not the first layer of a stage; stages begin at "
            f"layers {', '.join(map(str, stage_of))}"
        )
    return RecomputeSegments(tuple(sorted({0, *(stage_of[layer] for layer in layers)})), num_stages)


_MISSING = "???"
MOST_STAGES = 256
_EPOCH = 10**9  # the length is unknown without data: longer than any timeline


@dataclass(frozen=True)
class ComposedPhase:
    """One phase of a configuration.

    Attributes:
        steps: its length; None: to the end of the run.
        batch_size: samples of a minibatch.
        names: of its method and schedule on the command line.
    """

    rules: PipelineRules
    steps: int | None
    batch_size: int
    names: Mapping[str, str]


def composed_phases(overrides: Sequence[str]) -> list[ComposedPhase]:
    """The phases that these overrides of `pipetrain run` choose.

    Raises:
        ConfigError: they do not go together, or only the model could say how many stages there are.
    """
    settings = composed(overrides)
    settings.check_targets()
    rule = settings.partition.build() if settings.choices.get("partition") == "file" else None
    num_stages, segments = _stages_and_segments(settings, None if rule is None else len(rule.replicas))
    replicas = replace(settings.replicas, counts=replica_counts(settings, rule))
    train = settings.train
    phases = []
    for phase in settings.phases:
        rules = build_pipeline_rules(phase, num_stages, train.microbatches, segments, replicas)
        phases.append(ComposedPhase(rules, phase.length(_EPOCH), train.batch_size, phase.choices))
    return phases


def _stages_and_segments(settings: Settings, planned: int | None) -> tuple[int, RecomputeSegments | None]:
    partition, boundaries = settings.partition.options, settings.train.recompute_boundaries
    cuts = next((name for name in ("boundaries", "ppv") if name in partition), None)
    firsts: list[int] = []
    num_stages = partition.get("stages") if planned is None else planned
    if planned is None and cuts is not None:
        if not isinstance(partition[cuts], list):
            wrong = " is not set" if partition[cuts] == _MISSING else f"={partition[cuts]}: a list"
            raise ConfigError(f"partition.{cuts}{wrong}; e.g. partition.{cuts}=[4,7]")
        firsts = [0, *partition[cuts]]
        num_stages = len(firsts)
    if not is_whole(num_stages) or not 1 <= num_stages <= MOST_STAGES:
        raise ConfigError(
            f"partition.stages={as_configured(num_stages)}: a timeline needs the number of stages, 1 to {MOST_STAGES}"
        )
    if boundaries is not None and cuts != "boundaries":
        raise ConfigError(
            f"train.recompute_boundaries={boundaries} names layers; without the model only partition=explicit says "
            "which stages begin with them: partition=explicit partition.boundaries=[...]"
        )
    stage_of = {layer: r for r, layer in enumerate(firsts)}
    return num_stages, build_recompute_segments(settings.train, num_stages, stage_of)
