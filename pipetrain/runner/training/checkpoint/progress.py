"""progress.json of a checkpoint: the position of the run, validated before use, as another program may write it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from pipetrain.runner.config.schema import TrainConfig
from pipetrain.runner.training.early_stopping import EarlyStopping
from pipetrain.runner.training.timetable import Timetable


@dataclass
class TrainingState:
    """Position of a run between two steps.

    Attributes:
        target: metrics at which the run ends; None for none.
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
    def of(cls, progress: Mapping[str, Any], timetable: Timetable, train: TrainConfig, metric: str) -> Self:
        """The state in a checkpoint, for a run with this timetable, which may stop early by a metric.

        That of a fresh run if the progress is empty.
        """
        step, metrics = progress.get("step", 0), progress.get("metrics", {})
        # settings that make an earlier step the last one make its evaluation due
        due = bool(progress.get("evaluation_due")) or (0 < step == timetable.total_steps and not metrics)
        target, stopping = train.target, EarlyStopping.of(train, metric)
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
