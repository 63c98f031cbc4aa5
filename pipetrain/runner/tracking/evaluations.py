"""The evaluations of a run: the metrics of the last one, and the best of each."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pipetrain.data.files.strict_json import number

_LOWER_IS_BETTER = ("loss", "perplexity")


def lower_is_better(further: Iterable[str]) -> frozenset[str]:
    """The metrics that fall as a model improves: the loss and the perplexity, and `further` ones."""
    return frozenset((*_LOWER_IS_BETTER, *further))


def reaches(value: float, wanted: float, *, lower: bool) -> bool:
    """True if a metric has reached its target."""
    return value <= wanted if lower else value >= wanted


class Evaluations:
    """The last value of each metric, its best one, and the step and epoch of the best.

    Args:
        earlier: the `fields` of earlier evaluations.
        lower: the names of metrics, in addition to loss and perplexity, that fall as a model improves.
    """

    def __init__(self, earlier: Mapping[str, Any], lower: Sequence[str] = ()) -> None:
        self.lower_is_better = lower_is_better(lower)
        self.final = {name: number(value) for name, value in earlier.get("final", {}).items()}
        self.best = {name: number(value) for name, value in earlier.get("best", {}).items()}
        self.best_step: dict[str, int] = dict(earlier.get("best_step", {}))
        self.best_epoch: dict[str, int] = dict(earlier.get("best_epoch", {}))

    def add(self, step: int, epoch: int, metrics: Mapping[str, float]) -> None:
        """Adds the evaluation after `step` steps; `epoch` counts from 1."""
        self.final = dict(metrics)
        for name, value in metrics.items():
            best = self.best.get(name, math.nan)
            improves = value < best if name in self.lower_is_better else value > best
            if improves or math.isnan(best):
                self.best[name], self.best_step[name], self.best_epoch[name] = value, step, epoch

    def fields(self) -> dict[str, Any]:
        """Fields for the summary and checkpoints."""
        return {
            "final": self.final,
            "best": self.best,
            "best_step": self.best_step,
            "best_epoch": self.best_epoch,
            "lower_is_better": sorted(self.lower_is_better & self.final.keys()),
        }
