"""progress.json of a checkpoint: the position of the run, validated before use, as another program may write it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from pipetrain.engine.errors import is_whole
from pipetrain.runner.training.early_stopping import EarlyStopping
from pipetrain.runner.training.fingerprint import is_fingerprint
from pipetrain.runner.training.timetable import Timetable


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
        signatures: metric of the whole model -> how it was computed the last time; also there.
        evaluation_due: True if the run has yet to be evaluated at this very step.
        stopping: count of evaluations without an improvement; None if they do not end the run.
    """

    target: Mapping[str, float] | None = None
    step: int = 0
    reached: Mapping[str, Any] | None = None
    measured: list[dict[str, Any]] = field(default_factory=list)
    extra_drains: list[int] = field(default_factory=list)
    metrics: Mapping[str, float] = field(default_factory=dict)
    signatures: Mapping[str, str] = field(default_factory=dict)
    evaluation_due: bool = False
    stopping: EarlyStopping | None = None

    @classmethod
    def of(
        cls,
        progress: Mapping[str, Any],
        target: Mapping[str, float] | None,
        timetable: Timetable,
        stopping: EarlyStopping | None = None,
    ) -> Self:
        """The state in a checkpoint, for a run with this target, timetable and early stopping.

        That of a fresh run if the progress is empty. `stopping` continues from it.
        """
        step, metrics = progress.get("step", 0), progress.get("metrics", {})
        # settings that make an earlier step the last one make its evaluation due
        due = bool(progress.get("evaluation_due")) or (0 < step == timetable.total_steps and not metrics)
        if stopping is not None:
            stopping.continue_from(progress.get("early_stopping"))
        return cls(
            target=target,
            step=step,
            reached=progress.get("target") if progress.get("target_wanted") == target else None,
            measured=progress.get("per_stage", []),
            extra_drains=[*progress.get("extra_drains", ())],
            metrics=metrics,
            signatures=progress.get("metric_signatures", {}),
            evaluation_due=due and timetable.evaluates(step),
            stopping=stopping,
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
            "metric_signatures": self.signatures,
            "evaluation_due": self.evaluation_due,
            "early_stopping": None if self.stopping is None else self.stopping.fields(),
        }

    def ended(self, timetable: Timetable) -> bool:
        """True if the run has reached its target, made its last step or stopped early."""
        done = self.reached is not None or self.step == timetable.total_steps
        return done or self.stopped_early(timetable) is not None

    def stopped_early(self, timetable: Timetable) -> str | None:
        """Why the run ends before its target and its last step; None if it does not."""
        if self.stopping is None or not self.stopping.ended:
            return None
        return self.stopping.reason if self.reached is None and self.step < timetable.total_steps else None


_REQUIRED = {"step": ("count", "a number of steps"), "model": ("text", "text"), "dataset": ("text", "text")}
_OPTIONAL = {
    "steps_per_epoch": ("positive", "a number of steps"),
    "vocabulary_sha256": ("text?", "text"),
    "data": ("{fingerprint}", "a mapping of fingerprints"),
    "target": ("{any}?", "a mapping"),
    "target_wanted": ("{number}?", "a mapping of metrics"),
    "per_stage": ("[{any}]", "a list of stages"),
    "planned_stages": ("[stage]", "a list of stages, each with its first layer and its seconds"),
    "replicas": ("[positive]", "a list of numbers of replicas"),
    "extra_drains": ("[count]", "a list of steps"),
    **dict.fromkeys(("metrics", "final", "best"), ("{number?}", "a mapping of metrics")),  # null: it was not finite
    "metric_signatures": ("{text}", "a mapping of text"),
    **dict.fromkeys(("best_step", "best_epoch"), ("{count}", "a mapping of numbers")),
    "evaluation_due": ("flag", "true or false"),
    "early_stopping": ("stopping?", "a metric with its best value and a number of evaluations"),
    **dict.fromkeys(("aliases", "untied"), ("{text}", "a mapping of names")),
    "initial_weights": ("{text}?", "a path and its sha256"),
    **dict.fromkeys(("wall_s", "eval_s", "checkpoint_s"), ("number", "a number of seconds")),
}
"""Fields that a checkpoint of an older version may lack."""
_STAGE = {"first": "count", "estimated_seconds": "number"}
_STOPPING = {"metric": "text", "best": "number?", "epoch": "count", "evaluations": "count"}
_SCALARS: dict[str, Callable[[Any], bool]] = {
    "any": lambda _value: True,
    "count": lambda value: is_whole(value) and value >= 0,
    "positive": lambda value: is_whole(value) and value > 0,
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "text": lambda value: isinstance(value, str),
    "fingerprint": is_fingerprint,
    "flag": lambda value: isinstance(value, bool),
    "stage": lambda value: _has(_STAGE, value),
    "stopping": lambda value: _has(_STOPPING, value),
}


def _has(fields: Mapping[str, str], value: Any) -> bool:
    return isinstance(value, dict) and all(_is_a(kind, value.get(name)) for name, kind in fields.items())


def _is_a(kind: str, value: Any) -> bool:
    """True if a value is of a kind: one of `_SCALARS`, {kind} for a mapping, [kind] for a list, kind? for or null."""
    if kind.endswith("?"):
        return value is None or _is_a(kind[:-1], value)
    if kind.startswith("{"):
        return isinstance(value, dict) and all(_is_a(kind[1:-1], each) for each in value.values())
    if kind.startswith("["):
        return isinstance(value, list) and all(_is_a(kind[1:-1], each) for each in value)
    return _SCALARS[kind](value)


def progress_fault(progress: Any) -> str | None:
    """Fault of the progress, as the continuation of `damaged:`; None if it is valid."""
    if not isinstance(progress, Mapping):
        return "it holds no fields"
    if missing := [name for name in _REQUIRED if name not in progress]:
        return f"it has no {missing[0]}"
    for name, (kind, words) in {**_REQUIRED, **_OPTIONAL}.items():
        if name in progress and not _is_a(kind, progress[name]):
            return f"its {name} is not {words}"
    return None
