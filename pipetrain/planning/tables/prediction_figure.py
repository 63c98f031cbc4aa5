"""The picture of predicted pipelines: a bar for each case, or for each stage of a single one."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pipetrain.planning.costs.prediction import PredictedStage, Prediction
from pipetrain.planning.tables.prediction_tables import Case, distinguishing_names
from pipetrain.runner.terminal.style import BLUE, GRAY, GREEN, INK, ORANGE, RED, figure
from pipetrain.runner.terminal.text_table import shortened, unit_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes


_LONGEST = 44
_MOST = 60
"""Largest number of distinguishable bars in a panel."""


def draw(path: Path, cases: Sequence[Case]) -> str | None:
    """Draws rates, idle shares and memory of several cases, or the stages of one.

    Returns a line that says how many these are if there are more than it shows.
    """
    if len(cases) == 1:
        only = cases[0].prediction
        _draw_stages(path, only)
        count, what = len(_bars_of(only)), "processes" if only.several else "stages"
    else:
        _draw_cases(path, cases[:_MOST])
        count, what = len(cases), "pipelines"
    return f"{path.name} shows the first {_MOST} of {count} {what}" if count > _MOST else None


def _draw_cases(path: Path, cases: Sequence[Case]) -> None:
    names = distinguishing_names(cases)
    labels = [_label(case, names) for case in cases]
    each = [case.prediction for case in cases]
    with figure(path, (4.6, 2.4, 2.4, 2.4), height=max(2.4, 0.24 * len(cases) + 1.0)) as (speed, idle, sent, memory):
        sizes = [p.batch_size for p in each]
        if all(sizes):
            _bars(speed, labels, [p.samples_per_s or 0.0 for p in each], "samples/s, predicted", BLUE)
            _sizes(sent, list(map(_sent_per_sample, each)), "sent per sample", ORANGE)
        else:
            _bars(speed, labels, [1000 * p.time_per_minibatch_s for p in each], "ms per minibatch, predicted", BLUE)
            _sizes(sent, [p.sent_bytes for p in each], "sent per minibatch", ORANGE)
        _bars(idle, None, [100 * p.idle for p in each], "% of the time idle", GRAY)
        _sizes(memory, list(map(_peak, each)), "on the largest device", GREEN)


def _sent_per_sample(prediction: Prediction) -> float:
    return prediction.sent_bytes / (prediction.batch_size or 1)


def _peak(prediction: Prediction) -> int:
    return max(stage.memory_bytes or 0 for stage in prediction.stages)


def _label(case: Case, names: Sequence[str]) -> str:
    chosen = {name: case.chosen[name] for name in names if name in case.chosen}
    words = [value if name in ("method", "schedule") else f"{name} = {value}" for name, value in chosen.items()]
    return shortened(", ".join(words), _LONGEST)


def _sizes(panel: "Axes", counts: Sequence[float], what: str, color: str) -> None:
    """Bars of bytes, in the unit that suits the longest."""
    unit, size = unit_of(max(counts))
    _bars(panel, None, [count / size for count in counts], f"{unit} {what}", color)


def _bars(panel: "Axes", labels: Sequence[str] | None, values: Sequence[float], what: str, color: str) -> None:
    places = range(len(values))
    panel.barh(places, values, height=0.66, color=color)
    panel.set_yticks(places, labels or [""] * len(values))
    panel.set_ylim(len(values) - 0.4, -0.6)
    panel.set_xlabel(what)
    panel.grid(visible=False, axis="y")


def _draw_stages(path: Path, prediction: Prediction) -> None:
    """The time of a minibatch on a device of each stage, or on each that has several, and its memory."""
    bars = _bars_of(prediction)[:_MOST]
    places = range(len(bars))
    with figure(path, (6.0, 3.0), height=max(2.6, 0.3 * len(bars) + 1.3)) as (times, memory):
        begun = [0.0] * len(bars)
        for name, color, shown in (parts := list(parts_of(prediction, len(bars)))):
            times.barh(places, shown, left=begun, height=0.66, color=color, label=name)
            begun = [a + b for a, b in zip(begun, shown, strict=True)]
        period = 1000 * prediction.time_per_minibatch_s
        times.axvline(period, color=INK, linewidth=1.2, label="time per minibatch")
        one = "process" if prediction.several else "stage"
        replicas = ["" if first.replicas == 1 else f", {first.replicas} replicas" for first, *_ in bars]
        times.set_yticks(places, [f"{one} {r}{text}" for r, text in enumerate(replicas)])
        times.set_ylim(len(bars) - 0.4, -0.6)
        times.set_xlabel("ms for each minibatch, replicas counted")
        times.grid(visible=False, axis="y")
        columns = 5 if len(parts) < 5 else 4  # the line has an entry, too
        times.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=columns, columnspacing=1.2)
        _sizes(memory, [first.memory_bytes or 0 for first, *_ in bars], "on a device", GRAY)


_COLORS = {
    "forward": BLUE,
    "recomputation": RED,
    "backward": ORANGE,
    "weight gradient": "#6f4aa0",
    "update": GREEN,
    "data": GRAY,
}


def _bars_of(prediction: Prediction) -> list[list[PredictedStage]]:
    """The stages of each bar: one, or those of a process."""
    if not prediction.several:
        return [[stage] for stage in prediction.stages]
    processes = sorted({stage.process for stage in prediction.stages})
    return [[stage for stage in prediction.stages if stage.process == process] for process in processes]


def parts_of(prediction: Prediction, count: int) -> Iterator[tuple[str, str, list[float]]]:
    """(what, color, ms) of the work of the first bars for a minibatch, divided by their replicas."""
    bars = _bars_of(prediction)[:count]
    for kind, color in _COLORS.items():
        shown = [sum(1000 * stage.work_s[kind] / stage.replicas for stage in bar) for bar in bars]
        if any(shown):
            yield kind, color, shown
