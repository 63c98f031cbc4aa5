"""progress.json of a checkpoint: the position of the run, validated before use, as another program may write it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from pipetrain.errors import is_whole
from pipetrain.run.timetable import Timetable


@dataclass
class TrainingState:
    """Position of a run between two steps.

    Attributes:
        target: metrics at which the run ends; None for none.
        step: number of steps trained so far.
        reached: step, epoch and time at which the run reached its target; None before.
        measured: report of every stage at the end of the last epoch.
        extra_drains: steps after which the pipeline of an asynchronous schedule drained though the settings do not ask
            for it, in earlier parts of the run as well; a run that does not drain there has other bits from there on.
        metrics: of an evaluation at this very step, in the process of the last stage.
        evaluation_due: True if the run has yet to be evaluated at this very step.
    """

    target: Mapping[str, float] | None = None
    step: int = 0
    reached: Mapping[str, Any] | None = None
    measured: list[dict[str, Any]] = field(default_factory=list)
    extra_drains: list[int] = field(default_factory=list)
    metrics: Mapping[str, float] = field(default_factory=dict)
    evaluation_due: bool = False

    @classmethod
    def of(cls, progress: Mapping[str, Any], target: Mapping[str, float] | None, timetable: Timetable) -> Self:
        """The state in a checkpoint, for a run with this target and timetable; that of a fresh run if it is empty."""
        step = progress.get("step", 0)
        return cls(
            target=target,
            step=step,
            reached=progress.get("target") if progress.get("target_wanted") == target else None,
            measured=progress.get("per_stage", []),
            extra_drains=[*progress.get("extra_drains", ())],
            metrics=progress.get("metrics", {}),
            evaluation_due=bool(progress.get("evaluation_due")) and timetable.evaluates(step),
        )

    def fields(self) -> dict[str, Any]:
        """Fields of the progress."""
        return {
            "step": self.step,
            "target": self.reached,
            "target_wanted": self.target,
            "per_stage": self.measured,
            "extra_drains": self.extra_drains,
            "metrics": self.metrics,
            "evaluation_due": self.evaluation_due,
        }

    def ended(self, timetable: Timetable) -> bool:
        """True if the run has reached its target or made its last step."""
        return self.reached is not None or self.step == timetable.total_steps


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_count(value: Any) -> bool:
    return is_whole(value) and value >= 0


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_mapping(value: Any, holds: Callable[[Any], bool] = lambda _value: True) -> bool:
    return isinstance(value, dict) and all(map(holds, value.values()))


def _is_list(value: Any, holds: Callable[[Any], bool]) -> bool:
    return isinstance(value, list) and all(map(holds, value))


_Field = tuple[Callable[[Any], bool], str]
_COUNT: _Field = (_is_count, "not a number of steps")
_TEXT: _Field = (_is_text, "not text")
_SECONDS: _Field = (_is_number, "not a number of seconds")
_NAMES: _Field = (lambda value: _is_mapping(value, _is_text), "not a mapping of names")
_COUNTS: _Field = (lambda value: _is_mapping(value, _is_count), "not a mapping of numbers")
_METRICS: _Field = (  # null: it was not finite
    lambda value: _is_mapping(value, lambda each: each is None or _is_number(each)),
    "not a mapping of metrics",
)
_REQUIRED = {"step": _COUNT, "model": _TEXT, "dataset": _TEXT}
_OPTIONAL: dict[str, _Field] = {
    "steps_per_epoch": (lambda value: _is_count(value) and value > 0, "not a number of steps"),
    "vocabulary_sha256": (lambda value: value is None or _is_text(value), "not text"),
    "target": (lambda value: value is None or _is_mapping(value), "not a mapping"),
    "target_wanted": (lambda value: value is None or _is_mapping(value, _is_number), "not a mapping of metrics"),
    "per_stage": (lambda value: _is_list(value, _is_mapping), "not a list of stages"),
    "extra_drains": (lambda value: _is_list(value, _is_count), "not a list of steps"),
    "metrics": _METRICS,
    "final": _METRICS,
    "best": _METRICS,
    "best_step": _COUNTS,
    "best_epoch": _COUNTS,
    "evaluation_due": (lambda value: isinstance(value, bool), "neither true nor false"),
    "aliases": _NAMES,
    "untied": _NAMES,
    "wall_s": _SECONDS,
    "eval_s": _SECONDS,
    "checkpoint_s": _SECONDS,
}
"""Fields that a checkpoint of an older version may lack."""


def progress_fault(progress: Any) -> str | None:
    """Fault of the progress, as the continuation of `damaged:`; None if it is valid."""
    if not isinstance(progress, Mapping):
        return "it holds no fields"
    if missing := [name for name in _REQUIRED if name not in progress]:
        return f"it has no {missing[0]}"
    for name, (holds, otherwise) in {**_REQUIRED, **_OPTIONAL}.items():
        if name in progress and not holds(progress[name]):
            return f"its {name} is {otherwise}"
    return None
