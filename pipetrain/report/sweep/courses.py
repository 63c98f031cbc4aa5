"""Which courses the figures of a sweep show, and what their axes and bands are called."""

from collections.abc import Sequence

from pipetrain.report.sweep.columns import column_of, metric_of
from pipetrain.report.sweep.curves import AXES, EPOCH, PREDICTED_S, STEP, TRAIN_LOSS, WALL_S
from pipetrain.report.sweep.groups import SweepGroup
from pipetrain.tracking.throughput import ALL_THROUGHPUTS

TIMES = (WALL_S, PREDICTED_S)
AXIS_LABELS = {EPOCH: "epoch", STEP: "step", WALL_S: "wall time, s", PREDICTED_S: "predicted time of the pipeline, s"}
_BY = {EPOCH: "epoch", STEP: "step", WALL_S: "wall time", PREDICTED_S: "predicted time"}


def courses_of(metric: str | None, groups: Sequence[SweepGroup]) -> list[tuple[str, str]]:
    """(curve, axis) of all that can be drawn: the main ones, the training loss by time, and the others by epoch."""
    first, others = main_courses(metric, groups), dict.fromkeys(_curves(groups))
    rest = [(name, EPOCH) for name in others if name not in {name for name, _ in first}]
    by_time = [(TRAIN_LOSS, axis) for axis in TIMES if TRAIN_LOSS in others]
    return [*first, *_drawable(by_time, groups), *sorted(rest, key=lambda each: each[0] in ALL_THROUGHPUTS)]


def main_courses(metric: str | None, groups: Sequence[SweepGroup]) -> list[tuple[str, str]]:
    """Those of the metric of evaluations that the ranked column is of, or of that column, and of the training loss."""
    available = _curves(groups)
    ranked = next((name for name in (metric_of(groups, metric), metric) if name in available), None)
    wanted = [(ranked, axis) for axis in AXES] if ranked else []
    wanted += [(TRAIN_LOSS, STEP)] if TRAIN_LOSS in available else []
    return _drawable(wanted, groups)


def _drawable(wanted: Sequence[tuple[str, str]], groups: Sequence[SweepGroup]) -> list[tuple[str, str]]:
    return [each for each in wanted if any(group.course(*each) for group in groups)]


def _curves(groups: Sequence[SweepGroup]) -> list[str]:
    return [name for group in groups for run in group.counted for name in run.curves]


def heading(name: str, axis: str) -> str:
    """What a course is called, such as `top1 by epoch`."""
    return f"{quantity(name)} by {_BY[axis]}"


def quantity(name: str) -> str:
    """What its values are."""
    return column_of(name).head.removeprefix("final ")


def band(name: str, groups: Sequence[SweepGroup]) -> str:
    """What lines and bands are; the bands are of the groups that have several seeds."""
    counts = sorted({sum(name in run.curves for run in group.counted) for group in groups} - {0, 1})
    if not counts:
        return "one seed each"
    several = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    return f"mean and range of {several} seeds"
