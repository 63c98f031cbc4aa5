"""Distances between weights that runs have measured: a table by stage, and curves by step."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from pipetrain.engine.errors import ConfigError
from pipetrain.engine.program.trace import COSINE, RELATIVE
from pipetrain.reporting.sweep.groups import SweepGroup, labels_of
from pipetrain.runner.terminal.style import figure_of_rows
from pipetrain.runner.terminal.text_table import both_ends, counted, text_table
from pipetrain.runner.tracking.records import OF_STAGE, STALENESS, read_records
from pipetrain.runner.tracking.run_directory import RunDirectory

Curve = dict[int, float]
"""Step -> value."""
_HEADS = {
    f"{RELATIVE}weight_drift": "drift / |W|",
    f"{RELATIVE}forward_error": "F error / |W|",
    f"{RELATIVE}backward_error": "B error / |W|",
    f"{RELATIVE}weight_discrepancy": "discrepancy / |W|",
    "gradient_norm": "|gradient|",
    "update_norm": "|update|",
    COSINE: "cosine",
}
"""Quantity -> its column and panel."""
_RATIOS = {"forward_error": "F error / drift", "weight_discrepancy": "discrepancy / drift"}
_DRIFT = "weight_drift"
_WIDTH, _HEIGHT = 2.6, 2.4
_LARGEST = 1e100
"""Larger than what is measured; sums of larger numbers may overflow."""
_NAMED_STAGES = 8
"""Stages that a legend can name."""


@dataclass(frozen=True)
class MeasuredDistances:
    """Measurements of runs that differ in their seed alone.

    Attributes:
        name, label: of these runs; the label is short.
        runs: their number.
        curves: quantity -> stage -> the means over the runs.
    """

    name: str
    label: str
    runs: int
    curves: Mapping[str, Mapping[int, Curve]]

    def mean(self, quantity: str, stage: int) -> float | None:
        """Mean over the last half of the measured steps; None if it is unknown."""
        values = list(self.curves.get(quantity, {}).get(stage, {}).values())
        return fmean(values[len(values) // 2 :]) if values else None

    def ratio(self, quantity: str, stage: int) -> float | None:
        """Mean of a distance as a multiple of the mean drift; None if there is no drift."""
        distance, drift = self.mean(quantity, stage), self.mean(_DRIFT, stage)
        return distance / drift if distance is not None and drift else None


def measured(groups: Sequence[SweepGroup]) -> list[MeasuredDistances]:
    """The measurements of each group that has any, by name.

    Raises:
        ConfigError: no group has.
    """
    found = [_of_group(group, label) for group, label in zip(groups, labels_of(groups), strict=True)]
    if not any(each.curves for each in found):
        raise ConfigError(
            "no run here measured distances between weights; runs with log.staleness_every_steps=10 do, for example"
        )
    return sorted((each for each in found if each.curves), key=lambda each: each.name)


def _of_group(group: SweepGroup, label: str) -> MeasuredDistances:
    values: dict[str, dict[int, defaultdict[int, list[float]]]] = {}
    for quantity, r, step, value in _measurements(group):
        values.setdefault(quantity, {}).setdefault(r, defaultdict(list))[step].append(value)
    means = {
        quantity: {r: {step: fmean(steps[step]) for step in sorted(steps)} for r, steps in sorted(stages.items())}
        for quantity, stages in values.items()
    }
    return MeasuredDistances(group.name, label, len(group.counted), means)


def _measurements(group: SweepGroup) -> Iterator[tuple[str, int, int, float]]:
    """Yields (quantity, stage, step, value) of all runs."""
    records = (record for run in group.counted for record in read_records(RunDirectory(run.path)))
    for record in records:
        for key, value in record.items() if record["kind"] == STALENESS else ():
            if (of_stage := OF_STAGE.match(key)) and _is_measured(value):
                yield key[of_stage.end() :], int(of_stage[1]), record["step"], value


def _is_measured(value: object) -> bool:
    """True if it is a finite number: a record may be damaged."""
    return isinstance(value, int | float) and abs(value) < _LARGEST


def tables(groups: Sequence[MeasuredDistances]) -> list[str]:
    """Lines with a table of the stages of each group."""
    lines = []
    for group in groups:
        steps = sorted({step for curves in group.curves.values() for curve in curves.values() for step in curve})
        late = steps[len(steps) // 2 :]
        runs = f"{counted(group.runs, 'run', 'runs')}, " if group.runs > 1 else ""
        taken = f"means of {counted(len(late), 'step', 'steps')} from {late[0]} to {late[-1]}"
        lines += ["", f"{group.name}: {runs}{taken}", *_table(group)]
    return lines[1:]


def _table(group: MeasuredDistances) -> list[str]:
    """Lines with a row for each stage."""
    quantities = [quantity for quantity in _HEADS if quantity in group.curves]
    rows = []
    for r in sorted({r for curves in group.curves.values() for r in curves}):
        means = (group.mean(quantity, r) for quantity in quantities)
        ratios = (group.ratio(quantity, r) for quantity in _RATIOS)
        rows.append((str(r), *map(_cell, means), *map(_cell, ratios)))
    heads = ("stage", *(_HEADS[quantity] for quantity in quantities), *_RATIOS.values())
    return text_table(heads, both_ends(rows, "stages, in metrics.jsonl"), ">" * len(heads))


def _cell(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"


def draw(path: Path, groups: Sequence[MeasuredDistances]) -> None:
    """Draws a row of panels for each group, a panel for each quantity, a line for each stage; PNG, or SVG by name."""
    quantities = [quantity for quantity in _HEADS if any(quantity in group.curves for group in groups)]
    rows = [[_WIDTH] * len(quantities)] * len(groups)
    with figure_of_rows(path, rows, _HEIGHT) as panels:
        from matplotlib import colormaps

        for row, group in zip(panels, groups, strict=True):
            for panel, quantity in zip(row, quantities, strict=True):
                stages = group.curves.get(quantity, {})
                for r, curve in stages.items():
                    named = len(stages) <= _NAMED_STAGES or r in (min(stages), max(stages))
                    color, label = colormaps["viridis"](0.9 * r / max(1, *stages)), f"stage {r}" if named else "_"
                    line = panel.plot(
                        list(curve), list(curve.values()), color=color, lw=1.2, label=label, clip_on=False
                    )
                    line[0].set_marker("o" if len(curve) == 1 else "")
            row[0].set_ylabel(group.label)
            next(panel for panel in row if panel.lines).legend(handlelength=1)
        for column, quantity in zip(zip(*panels, strict=True), quantities, strict=True):
            lows, highs = zip(*(panel.get_ylim() for panel in column), strict=True)
            for panel in column:
                panel.set_ylim(min(lows) if quantity == COSINE else 0, max(highs))
            column[0].set_title(_HEADS[quantity])
            column[-1].set_xlabel("step")
