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
    planning = import_module("pipetrain.planning.profiling.predict")
    try:
        run = planning.ProfiledRun.of(settings, of_model=True)
        plans = [run.plan(prediction) for _, prediction in run.predictions()]
    except planning.UnpredictableError as error:
        return Costs(notes=(f"not predicted: {error}",))
    step_s = tuple(zip(job.timetable.phase_ends, (plan.time_per_minibatch_s for plan in plans), strict=True))
    fits = all(run.cut.row.fits(plan.memory_bytes) for plan in plans)
    return Costs(step_s, max(max(plan.memory_bytes) for plan in plans), tuple(run.notes()), fits)
