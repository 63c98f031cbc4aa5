"""How many processes hold each stage: as partition.replicas says, or else the plan that cuts the model."""

from dataclasses import replace

from pipetrain.config.settings import ReplicaSettings, Settings
from pipetrain.errors import ConfigError
from pipetrain.executors.phase import Phase
from pipetrain.planner.automatic import Automatic, Planned
from pipetrain.planner.finegrained import FineGrained
from pipetrain.planner.partition_rules import PartitionRule
from pipetrain.planner.stored_plan import Stored
from pipetrain.program.recomputation import RecomputeSegments
from pipetrain.run.build.pipeline import build_phases
from pipetrain.run.timetable import Timetable

Rule = PartitionRule | Automatic | FineGrained


def replicas_of(settings: Settings, rule: Rule) -> ReplicaSettings:
    """The replicas of a run: partition.replicas, or where that is null, those of the plan.

    Raises:
        ConfigError: the plan cannot be read.
    """
    given = settings.replicas
    if given.counts is None and isinstance(rule, Stored | Planned) and max(rule.replicas) > 1:
        return replace(given, counts=rule.replicas)
    return given


def phases_of_rule(
    settings: Settings, rule: Rule, timetable: Timetable, num_stages: int, segments: RecomputeSegments | None
) -> list[Phase]:
    """The phases of a run on these replicas.

    Raises:
        ConfigError: they do not go together; says so where they would without the replicas of a plan.
    """
    replicas = replicas_of(settings, rule)
    try:
        return build_phases(settings, timetable, num_stages, segments, replicas)
    except ConfigError as error:
        if replicas == settings.replicas:
            raise
        build_phases(settings, timetable, num_stages, segments)
        assert isinstance(rule, Stored | Planned)
        planned = "-".join(map(str, rule.replicas))
        raise ConfigError(
            f"{rule.where}: its stages have replicas, {planned}: {error}; or planner.straight=true plans without"
        ) from error
