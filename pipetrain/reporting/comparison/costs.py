"""Predicted costs of a configuration: seconds of a step, and memory of its largest stage."""

import math
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec

from pipetrain.runner.config.settings import Settings
from pipetrain.runner.training.job import Job


@dataclass(frozen=True)
class Costs:
    """Predicted costs of a pipeline.

    Attributes:
        step_s: seconds of a step in each phase, with the step at which the phase ends.
        largest_stage: peak bytes of a device of the largest stage; None if unknown.
        notes: on the prediction; of a pipeline that cannot be predicted, why.
        fits: True if every stage fits into the memory that the settings give its devices.
    """

    step_s: tuple[tuple[int, float], ...] = ()
    largest_stage: int | None = None
    notes: tuple[str, ...] = ()
    fits: bool = True

    def seconds(self, steps: float) -> float:
        """Seconds of the first steps of a run."""
        if math.isinf(steps):
            return math.inf
        begins = (0, *(end for end, _ in self.step_s))
        spans = zip(begins, self.step_s, strict=False)
        return sum(max(0.0, min(steps, end) - begin) * seconds for begin, (end, seconds) in spans)


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
    largest = max((size for size in predicted.memory_bytes if size is not None), default=None)
    return Costs(step_s, largest, predicted.notes, predicted.fits)
