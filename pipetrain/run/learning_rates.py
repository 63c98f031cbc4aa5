"""The learning rates that a run applies."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from pipetrain.executors.phase import Phase


@dataclass(frozen=True)
class LearningRates:
    """The rate of the learning-rate schedule, and that of each stage where a method or replicas scale it by stage.

    Attributes:
        base: the schedule's rate of a step, counted from 0.
        phases: of the run.
    """

    base: Callable[[int], float]
    phases: Sequence[Phase]

    def __call__(self, step: int) -> dict[str, float]:
        """`lr`, and `stageR_lr` for each stage if some method of the run, or replicas, scale rates."""
        rate, scales = self.base(step), self._scales(step)
        return {"lr": rate, **{f"stage{r}_lr": rate * scale for r, scale in enumerate(scales)}}

    @cached_property
    def _by_stage(self) -> bool:
        return any(_scaled(phase) for phase in self.phases)

    def _scales(self, step: int) -> list[float]:
        if not self._by_stage:
            return []
        return _scales_in(next(phase for phase in self.phases if step < phase.end), step)


def _scaled(phase: Phase) -> bool:
    """Whether the first rates of a phase are scaled; those that a method anneals later are scaled then, too."""
    return any(scale != 1 for scale in _scales_in(phase, phase.start))


def _scales_in(phase: Phase, step: int) -> list[float]:
    method = phase.rules.method
    contexts = phase.rules.contexts
    return [method.learning_rate_scale(context, step - phase.start) * context.rate_scale for context in contexts]
