"""A run's data, model and plan: all that is needed to say which layers form which stage."""

from dataclasses import dataclass
from pathlib import Path

from pipetrain.engine.models.chain import LayerChain
from pipetrain.runner.config.phases import naming_phase
from pipetrain.runner.config.settings import Settings
from pipetrain.runner.partition.run_plan import Plan, Unplanned, planned
from pipetrain.runner.training.components.data import Data, build_data
from pipetrain.runner.training.components.model import build_model, naming_types
from pipetrain.runner.training.components.pipeline import build_partition_rule, build_schedule
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
    """Builds data and model of a run, and plans its stages.

    Args:
        settings: of the run.
        resume: the checkpoint to continue from.

    Raises:
        ConfigError: an object cannot be built, or the partition rule cannot hold.
    """
    settings.check_targets()
    rule = build_partition_rule(settings)
    data = build_data(settings)
    chain = build_model(settings, data.dataset)
    timetable = timetable_of(settings, len(data.train))
    run = Unplanned(
        settings, chain, data, weight_memory_traffic(settings, timetable), _are_synchronous(settings), resume
    )
    with naming_types(chain.module, chain, data.example):
        plan = planned(run, rule)
    return PlannedRun(data, chain, timetable, plan)


def _are_synchronous(settings: Settings) -> bool:
    """True if the schedules of all phases are synchronous."""
    found = True
    for phase in settings.phases:
        with naming_phase(phase.number):
            found &= build_schedule(phase).synchronous
    return found
