"""Predicted costs of a configuration: seconds of a step, and memory of each stage."""

import math
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pipetrain.runner.config.settings import Settings
from pipetrain.runner.tracking.run_directory import RunDirectory
from pipetrain.runner.training.job import Job
from pipetrain.runner.training.preflight import prepare

_PREFLIGHT = RunDirectory(Path("comparison-preflight"))
"""No file of it is read or written."""


@dataclass(frozen=True)
class Costs:
    """Predicted costs of a pipeline.

    Attributes:
        step_s: seconds of a step in each phase, with the step at which the phase ends.
        stage_bytes: peak of a device of each stage; None if unknown.
        notes: on the prediction; of a pipeline that cannot be predicted, why.
        fits: True if every stage fits into the memory that the settings give its devices.
    """

    step_s: tuple[tuple[int, float], ...] = ()
    stage_bytes: tuple[int | None, ...] = ()
    notes: tuple[str, ...] = ()
    fits: bool = True

    def seconds(self, steps: float) -> float:
        """Seconds of the first steps of a run."""
        if math.isinf(steps):
            return math.inf
        begins = (0, *(end for end, _ in self.step_s))
        spans = zip(begins, self.step_s, strict=False)
        return sum(max(0.0, min(steps, end) - begin) * seconds for begin, (end, seconds) in spans)

    @property
    def largest_stage(self) -> int | None:
        """Peak bytes of a device of the largest stage; None if unknown."""
        return max((size for size in self.stage_bytes if size is not None), default=None)


def checked(settings: Settings) -> Job:
    """The run of the settings, checked as before its start.

    Raises:
        ConfigError: it cannot work.
        DataError: the data set's own code fails.
    """
    return prepare(settings, _PREFLIGHT)


def predicted_costs(settings: Settings, job: Job) -> Costs:
    """The predicted costs.

    Raises:
        ConfigError: the topology is wrong, or the profile is of another model or batch size.
    """
    if find_spec("pipetrain.planning") is None:
        return Costs(notes=("not predicted: pipetrain is installed without its planner",))
    predicted = import_module("pipetrain.planning.profiling.predict").phase_costs(settings)
    if not predicted.step_s:
        return Costs(notes=predicted.notes)
    step_s = tuple(zip(job.timetable.phase_ends, predicted.step_s, strict=True))
    return Costs(step_s, tuple(predicted.memory_bytes), predicted.notes, predicted.fits)


def fixed_costs(job: Job, costs: Costs) -> tuple[Any, ...]:
    """Length and costs that are the same in every call, as they are not measured."""
    return job.timetable.phase_ends, sum(stage.parameters for stage in job.plan.stages), costs.stage_bytes
