"""The evaluations of a run: the metrics of the last one, and the best of each."""

import math
from collections.abc import Mapping
from typing import Any

from pipetrain.tracking.strict_json import number

LOWER_IS_BETTER = ("loss", "perplexity")


def reaches(metric: str, value: float, wanted: float) -> bool:
    """Whether a metric is at its target, or beyond it."""
    return value <= wanted if metric in LOWER_IS_BETTER else value >= wanted


def better(metric: str, new: float, old: float) -> bool:
    """Whether `new` improves on `old`."""
    return math.isnan(old) or (new < old if metric in LOWER_IS_BETTER else new > old)


class Evaluations:
    """Metric name -> its last value, its best one, and the step and epoch of that.

    Args:
        earlier: the `fields` of the evaluations before.
    """

    def __init__(self, earlier: Mapping[str, Any]) -> None:
        self.final = {name: number(value) for name, value in earlier.get("final", {}).items()}
        self.best = {name: number(value) for name, value in earlier.get("best", {}).items()}
        self.best_step: dict[str, int] = dict(earlier.get("best_step", {}))
        self.best_epoch: dict[str, int] = dict(earlier.get("best_epoch", {}))

    def add(self, step: int, epoch: int, metrics: Mapping[str, float]) -> None:
        """Adds the evaluation after `step` steps; `epoch` counts from 1."""
        self.final = dict(metrics)
        for name, value in metrics.items():
            if name not in self.best or better(name, value, self.best[name]):
                self.best[name], self.best_step[name], self.best_epoch[name] = value, step, epoch

    def fields(self) -> dict[str, Any]:
        """What the summary and checkpoints hold of them."""
        return {
            "final": self.final, "best": self.best, "best_step": self.best_step, "best_epoch": self.best_epoch
        }  # fmt: skip
