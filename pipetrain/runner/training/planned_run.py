"""A run's data, model and plan: all that is needed to say which layers form which stage."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path

from pipetrain.engine.models.chain import LayerChain
from pipetrain.runner.config.settings import Settings
from pipetrain.runner.partition.run_plan import Plan, Unplanned, planned
from pipetrain.runner.training.components.data import Data, build_data
from pipetrain.runner.training.components.model import build_model, naming_types
from pipetrain.runner.training.components.pipeline import build_partition_rule, build_phases, build_schedules
from pipetrain.runner.training.components.weight_traffic import weight_memory_traffic
from pipetrain.runner.training.timetable import Timetable, timetable_of


@dataclass(frozen=True)
class PlannedRun:
    """A run whose stages are known."""

    data: Data
    chain: LayerChain
    timetable: Timetable
    plan: Plan


def plan_run(settings: Settings, resume: Path | None = None) -> PlannedRun:
    """Builds data and model of a run, which may continue from a checkpoint, and plans its stages.

    Raises:
        ConfigError: an object cannot be built, or the partition rule cannot hold.
    """
    settings.check_targets()
    rule = build_partition_rule(settings)
    synchronous = all(schedule.synchronous for schedule in build_schedules(settings.phases))
    data = build_data(settings)
    chain = build_model(settings, data.dataset)
    timetable = timetable_of(settings, len(data.train))
    passes = weight_memory_traffic(partial(build_phases, settings, timetable), settings.optimizer)
    run = Unplanned(settings, chain, data, passes, synchronous, resume)
    with naming_types(chain.module, chain, data.example):
        plan = planned(run, rule)
    return PlannedRun(data, chain, timetable, plan)
