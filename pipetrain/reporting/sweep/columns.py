"""Columns of tables of runs: their heads, the direction that is better, and the format of their values."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pipetrain.reporting.sweep.compared_run import TRAIN_LOSS
from pipetrain.reporting.sweep.groups import SweepGroup
from pipetrain.runner.terminal.text_table import size_of
from pipetrain.runner.tracking.evaluations import lower_is_better
from pipetrain.runner.tracking.throughput import ALL_THROUGHPUTS, MEASURED, PREDICTED, SIMULATOR, in_tokens

_USUAL = ("bleu", "meteor", "top1", "perplexity", "loss")
_DIGITS, _MOST_DECIMALS = 4, 6


@dataclass(frozen=True)
class Column:
    """A number of every run.

    Attributes:
        head: of the column in a table.
        higher: True if more is better.
        text: formats a value; None: as a plain number, with its spread.
    """

    head: str
    higher: bool = False
    text: Callable[[float], str] | None = None


PREDICTED_STEP, PREDICTED_STAGE = "predicted_step_ms", "predicted_stage_bytes"
"""Columns of what `pipetrain compare` predicts."""
MEASUREMENTS = {
    "target_s": Column("to target, s"),
    "predicted_target_s": Column("to target, s, predicted"),
    "target_epochs": Column("to target, epochs"),
    "loss_steps": Column("steps to the loss"),
    MEASURED: Column("samples/s", higher=True),
    PREDICTED: Column("samples/s, predicted", higher=True),
    SIMULATOR: Column("samples/s of the simulator", higher=True),
    in_tokens(MEASURED): Column("tokens/s", higher=True),
    in_tokens(PREDICTED): Column("tokens/s, predicted", higher=True),
    in_tokens(SIMULATOR): Column("tokens/s of the simulator", higher=True),
    PREDICTED_STEP: Column("ms/step, predicted", text="{:.4g}".format),
    "wall_s": Column("wall time, s"),
    "train_s": Column("training, s"),
    "eval_s": Column("evaluation, s"),
    "first_loss": Column("first training loss"),
    TRAIN_LOSS: Column("training loss"),
    "steps": Column("steps", higher=True),
    "epochs": Column("epochs", higher=True),
    "idle_share": Column("idle", text="{:.0%}".format),
    "weight_bytes": Column("weights", text=size_of),
    "activation_bytes": Column("activations", text=size_of),
    "memory_bytes": Column("peak memory", text=size_of),
    "stage_bytes": Column("largest stage", text=size_of),
    PREDICTED_STAGE: Column("largest stage, predicted", text=size_of),
    "copies": Column("copies", text="{:.2f}".format),
    "message_bytes": Column("sent in a step", text=size_of),
    "message_share": Column("of plain", text="{:.1%}".format),
}
SPEEDS = (MEASURED, PREDICTED, in_tokens(MEASURED), in_tokens(PREDICTED))
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
    """Cell of each group, all with the same number of decimals: what four digits, or the spread, need."""
    text, decimals = column_of(name).text, decimals_of(groups, name)
    found = []
    for group in groups:
        mean, spread = group.mean(name), group.deviation(name)
        if mean is None:
            found.append("-")
        elif text:
            found.append(text(mean))
        else:
            found.append(f"{mean:.{decimals}f}" + ("" if spread is None else f" ± {spread:.{decimals}f}"))
    return found


def decimals_of(groups: Sequence[SweepGroup], name: str) -> int:
    """Number of decimals that four digits of the largest mean need, or the largest spread."""
    largest = max((abs(mean) for group in groups if (mean := group.mean(name)) is not None), default=0.0)
    spread = max((each for group in groups if (each := group.deviation(name))), default=0.0)
    decimals = _DIGITS - 1 - math.floor(math.log10(largest)) if largest else 0
    if spread and round(spread, max(0, decimals)) == 0:
        decimals = -math.floor(math.log10(spread))
    return min(max(0, decimals), _MOST_DECIMALS)
