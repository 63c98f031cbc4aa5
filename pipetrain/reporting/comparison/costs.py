"""Predicted costs of a configuration's steps, and what must leave them as they are to be tuned."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pipetrain.engine.errors import ConfigError
from pipetrain.reporting.comparison.halving import Axis
from pipetrain.runner.config.composition import composed
from pipetrain.runner.config.settings import Settings
from pipetrain.runner.tracking.run_directory import RunDirectory
from pipetrain.runner.training.job import Job
from pipetrain.runner.training.preflight import prepare

PREFLIGHT = RunDirectory(Path("comparison-preflight"))
"""In which no file is read or written."""


@dataclass(frozen=True)
class Costs:
    """Predicted costs of a pipeline.

    Attributes:
        step_s: seconds of a step in each phase, with the step at which the phase ends.
        memory_bytes: peak of a device of the largest stage.
        fits: True if every stage fits into the memory that the settings give its devices.
        notes: on the prediction; of a pipeline that cannot be predicted, why.
    """

    step_s: tuple[tuple[int, float], ...] = ()
    memory_bytes: int | None = None
    notes: tuple[str, ...] = ()
    fits: bool = True

    def seconds(self, steps: float) -> float | None:
        """Seconds of the first steps of a run; None if they are not known."""
        if math.isinf(steps):
            return math.inf if self.step_s else None
        total, begin = 0.0, 0
        for end, seconds in self.step_s:
            total += max(0.0, min(steps, end) - begin) * seconds
            begin = end
        return total if self.step_s else None


def predicted_costs(settings: Settings, job: Job) -> tuple[Costs, tuple[int | None, ...]]:
    """The predicted costs, and the bytes of a device of each stage in each phase.

    Raises:
        ConfigError: the topology is wrong, or the profile is of another model or batch size.
    """
    if find_spec("pipetrain.planning") is None:
        return Costs(notes=("not predicted: pipetrain is installed without its planner",)), ()
    predicted = import_module("pipetrain.planning.profiling.predict").phase_costs(settings)
    if not predicted.step_s:
        return Costs(notes=predicted.notes), ()
    costs = Costs(
        step_s=tuple(zip(job.timetable.phase_ends, predicted.step_s, strict=True)),
        memory_bytes=max((size for size in predicted.memory_bytes if size is not None), default=None),
        notes=predicted.notes,
        fits=predicted.fits,
    )
    return costs, predicted.memory_bytes


def fixed_costs(job: Job, sizes: Sequence[int | None]) -> tuple[Any, ...]:
    """Length and costs, as far as they are not measured."""
    return job.timetable.phase_ends, sum(stage.parameters for stage in job.plan.stages), sizes


def check_costs(words: Sequence[str], axis: Axis, fixed: tuple[Any, ...]) -> None:
    """Checks that no value of what is tuned changes the length or the costs of a run.

    Raises:
        ConfigError: one does.
    """
    for value in axis.values:
        settings = composed([*words, f"{axis.setting}={value}"])
        job = prepare(settings, PREFLIGHT)
        if fixed_costs(job, predicted_costs(settings, job)[1]) != fixed:
            raise ConfigError(
                f"--tune {axis.setting}: {value} changes the length or the costs of a run; as a setting with these "
                "values, it makes a configuration of each"
            )
