"""The curves of a run: metrics, throughput and training loss, by epoch, step and time."""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from pipetrain.tracking.records import Record, metrics_of
from pipetrain.tracking.throughput import ALL_THROUGHPUTS, PREDICTED

TRAIN_LOSS = "train_loss"
"""The curve of the training loss."""
EPOCH, STEP, WALL_S, PREDICTED_S = "epoch", "step", "wall_s", "predicted_s"
AXES = (EPOCH, STEP, WALL_S, PREDICTED_S)
"""What curves are drawn against; the time of a simulation is the predicted one of its pipeline."""
_MOST_LOSSES = 100
_LARGEST = 1e100
"""Beyond it sums and squares may overflow; no measurement comes near."""


class Point(NamedTuple):
    """A point of a curve.

    Attributes:
        epoch: the epoch that it is in, from 1.
        value: of the metric, loss or throughput.
        step: steps so far; None where it is not known.
        seconds: since training began, measured, or in a simulation predicted; None where it is not known.
    """

    epoch: float
    value: float
    step: int | None = None
    seconds: float | None = None

    @property
    def place(self) -> float:
        """What orders the points of a run."""
        return self.epoch if self.step is None else self.step

    def at(self, axis: str, *, predicted: bool) -> float | None:
        """Where it is on an axis; None where that is not known."""
        seconds = PREDICTED_S if predicted else WALL_S
        return {EPOCH: self.epoch, STEP: self.step, seconds: self.seconds}.get(axis)


Curve = list[Point]
"""The points of a run, in their order."""


def finite(numbers: Mapping[str, Any]) -> dict[str, float]:
    """The numbers that there are.

    Raises:
        TypeError: one is no number.
    """
    return {name: value for name, value in numbers.items() if value is not None and math.fabs(value) < _LARGEST}


def curves(records: Sequence[Record], content: Mapping[str, Any]) -> dict[str, Curve]:
    """Metric, throughput or `train_loss` -> its curve.

    Args:
        records: of metrics.jsonl.
        content: of the summary.

    Raises:
        KeyError: a record lacks something.
        TypeError: something is no number.
    """
    seconds = _seconds(content)
    found: dict[str, Curve] = {}
    for record in records:
        points = metrics_of(record) if record["kind"] == "eval" else {}
        if record["kind"] == "epoch":
            points = {name: record[name] for name in ALL_THROUGHPUTS if name in record}
        for name, value in finite(points).items():
            found.setdefault(name, []).append(_point(record, value, seconds))
    losses = _losses([record for record in records if record["kind"] == "interval"], seconds)
    return found | ({TRAIN_LOSS: losses} if losses else {})


def _losses(intervals: Sequence[Record], seconds: Callable[[Record], float | None]) -> Curve:
    """The training loss; of many records the means over as many steps each, a power of two."""
    steps = max((record["step"] for record in intervals), default=0)
    width = 1
    while steps > _MOST_LOSSES * width:
        width *= 2
    parts: dict[int, list[Record]] = {}
    for record in intervals:
        if finite({TRAIN_LOSS: record.get("loss")}):
            parts.setdefault((record["step"] - 1) // width, []).append(record)
    means = [(part[-1], statistics.fmean(record["loss"] for record in part)) for part in parts.values()]
    return [_point(record, loss, seconds) for record, loss in means]


def _point(record: Record, value: float, seconds: Callable[[Record], float | None]) -> Point:
    return Point(float(record["epoch"]), value, record["step"], seconds(record))


def _seconds(content: Mapping[str, Any]) -> Callable[[Record], float | None]:
    """The time of a record: measured, or, in a simulation, that of as many samples at the predicted throughput."""
    if content.get("executor") != "simulated" and content.get(PREDICTED) is None:
        return lambda record: finite({"wall_s": record.get("wall_s")}).get("wall_s")
    per_step = predicted_step_s(content)
    return lambda record: None if per_step is None else per_step * record["step"]


def predicted_step_s(content: Mapping[str, Any]) -> float | None:
    """Seconds of a step of the pipeline that is simulated."""
    samples, steps, speed = (content.get(name) for name in ("samples", "steps", PREDICTED))
    return samples / steps / speed if samples and steps and speed else None
