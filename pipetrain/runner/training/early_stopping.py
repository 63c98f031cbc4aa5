"""Early stopping: a run ends once its metric has not improved for so many evaluations."""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Self

from pipetrain.runner.config.schema import TrainConfig
from pipetrain.runner.tracking.records import format_metric


@dataclass
class EarlyStopping:
    """Counts the evaluations in a row without a better value of a metric.

    Attributes:
        patience: number of such evaluations after which the run ends.
        min_improvement: only a change by more than this is an improvement.
        best: value at the last improvement; None before there is one.
        epoch: epoch of the best value, from 1.
        evaluations: number of evaluations since then.
    """

    metric: str
    patience: int
    min_improvement: float = 0.0
    best: float | None = None
    epoch: int = 0
    evaluations: int = 0

    @classmethod
    def of(cls, train: TrainConfig, metric: str) -> Self | None:
        """The early stopping of a fresh run by a metric; None if no patience is set."""
        return None if train.patience is None else cls(metric, train.patience, train.min_improvement)

    @property
    def ended(self) -> bool:
        """True if the patience is at its end."""
        return self.evaluations >= self.patience

    @property
    def reason(self) -> str:
        """Why it ends the run, in words."""
        times = f"{self.evaluations} evaluation{'s' * (self.evaluations > 1)}"
        by = f" by more than {self.min_improvement:g}" if self.min_improvement else ""
        value = "last improved to" if self.min_improvement else "best"
        best = (
            "none was finite" if self.best is None else f"{value} {format_metric(self.best)} after epoch {self.epoch}"
        )
        return f"stopped early: no better {self.metric}{by} for {times}; {best}"

    def add(self, metrics: Mapping[str, float], epoch: int, lower_is_better: Collection[str]) -> None:
        """Adds an evaluation, unless it lacks the metric. A value that is not finite is no improvement."""
        if (value := metrics.get(self.metric)) is None:
            return
        lower = self.metric in lower_is_better
        gain = math.inf if self.best is None else self.best - value if lower else value - self.best
        if math.isfinite(value) and gain > self.min_improvement:
            self.best, self.epoch, self.evaluations = value, epoch, 0
        else:
            self.evaluations += 1

    def fields(self) -> dict[str, Any]:
        """The count so far, for checkpoints, the summary and other processes."""
        return {"metric": self.metric, "best": self.best, "epoch": self.epoch, "evaluations": self.evaluations}

    def continue_from(self, fields: Mapping[str, Any] | None) -> None:
        """Counts on from the `fields` of an earlier part of the run, unless they are of another metric."""
        if fields is not None and fields["metric"] == self.metric:
            self.best, self.epoch, self.evaluations = fields["best"], fields["epoch"], fields["evaluations"]
