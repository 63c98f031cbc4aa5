"""The columns that runs are compared by: what they are called, which end is better, and how their values are shown."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pipetrain.report.sweep.compared_run import TRAIN_LOSS
from pipetrain.report.sweep.groups import SweepGroup
from pipetrain.report.text_table import size_of
from pipetrain.tracking.evaluations import lower_is_better
from pipetrain.tracking.throughput import ALL_THROUGHPUTS, MEASURED, PREDICTED, SIMULATOR, in_tokens

_USUAL = ("bleu", "meteor", "top1", "perplexity", "loss")
_DIGITS, _MOST_DECIMALS = 4, 6


@dataclass(frozen=True)
class Column:
    """A number of every run.

    Attributes:
        head: what the table calls it.
        higher: True if more is better.
        text: of a single value, where it is neither a plain number nor has a spread.
    """

    head: str
    higher: bool = False
    text: Callable[[float], str] | None = None


def _percent(share: float) -> str:
    return f"{share:.0%}"


def _factor(value: float) -> str:
    return f"{value:.2f}"


MEASUREMENTS = {
    "target_s": Column("to target, s"),
    "predicted_target_s": Column("to target, s, predicted"),
    "target_epochs": Column("to target, epochs"),
    MEASURED: Column("samples/s", higher=True),
    PREDICTED: Column("samples/s, predicted", higher=True),
    SIMULATOR: Column("samples/s of the simulator", higher=True),
    in_tokens(MEASURED): Column("tokens/s", higher=True),
    in_tokens(PREDICTED): Column("tokens/s, predicted", higher=True),
    in_tokens(SIMULATOR): Column("tokens/s of the simulator", higher=True),
    "wall_s": Column("wall time, s"),
    "train_s": Column("training, s"),
    "eval_s": Column("evaluation, s"),
    "first_loss": Column("first training loss"),
    TRAIN_LOSS: Column("training loss"),
    "steps": Column("steps", higher=True),
    "epochs": Column("epochs", higher=True),
    "idle_share": Column("idle", text=_percent),
    "weight_bytes": Column("weights", text=size_of),
    "activation_bytes": Column("activations", text=size_of),
    "memory_bytes": Column("peak memory", text=size_of),
    "stage_bytes": Column("largest stage", text=size_of),
    "copies": Column("copies", text=_factor),
}
TO_TARGET = ("target_s", "predicted_target_s", "target_epochs")
"""Columns of the time to the target: seconds, predicted seconds of a simulated pipeline, and epochs."""
TIMINGS = (*ALL_THROUGHPUTS, "target_s", "predicted_target_s", "wall_s", "train_s", "eval_s", "idle_share")
"""Columns that depend on the load of the machine."""


def metric_of(groups: Sequence[SweepGroup], column: str | None) -> str | None:
    """The metric of evaluations that a column is of; of a measurement, the usual one of these runs."""
    available = {name for group in groups for run in group.runs for name in (*run.final, *run.best)}
    named = (column or "").removeprefix("best_")
    return next((name for name in (named, *_USUAL) if name in available), None)


def column_of(name: str, groups: Sequence[SweepGroup] = ()) -> Column:
    """A measurement, or the final or best value of a metric, of which `groups` say whether more is better."""
    if name in MEASUREMENTS:
        return MEASUREMENTS[name]
    best = name.startswith("best_")
    metric = name.removeprefix("best_")
    lower = lower_is_better(()).union(*(run.lower_is_better for group in groups for run in group.runs))
    return Column(f"best {metric}" if best else f"final {metric}", higher=metric not in lower)


def cells(groups: Sequence[SweepGroup], name: str) -> list[str]:
    """The column's cell of each group, all with as many decimals as four digits, or the spread, need."""
    found = [(group.mean(name), group.deviation(name)) for group in groups]
    if text := column_of(name).text:
        return ["-" if mean is None else text(mean) for mean, _ in found]
    decimals = decimals_of(groups, name)
    return [_cell(mean, spread, decimals) for mean, spread in found]


def decimals_of(groups: Sequence[SweepGroup], name: str) -> int:
    """As many as four digits of the largest mean need, or the largest spread."""
    means = [mean for group in groups if (mean := group.mean(name)) is not None]
    return _decimals(means, [spread for group in groups if (spread := group.deviation(name))])


def _decimals(means: Sequence[float], spreads: Sequence[float]) -> int:
    largest = max(map(abs, means), default=0.0)
    decimals = _DIGITS - 1 - math.floor(math.log10(largest)) if largest else 0
    if spreads and round(max(spreads), max(0, decimals)) == 0:
        decimals = -math.floor(math.log10(max(spreads)))
    return min(max(0, decimals), _MOST_DECIMALS)


def _cell(mean: float | None, spread: float | None, decimals: int) -> str:
    if mean is None:
        return "-"
    return f"{mean:.{decimals}f}" + ("" if spread is None else f" ± {spread:.{decimals}f}")
