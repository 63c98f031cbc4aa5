"""The page of slowdowns: how many more steps a deeper pipeline needs to a loss, by method and optimizer."""

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from papers.compared import compared_runs
from papers.field_map.losses import ended_runs
from papers.results import STEPS_TO_LOSS
from papers.targets import FULL, SMALL, ReproductionTarget
from pipetrain.report.seed_statistics import Interval, Values, ratio, verdict
from pipetrain.report.steps_to_loss import slowdown
from pipetrain.report.style import figure
from pipetrain.report.sweep.lines import End, label_ends, line_styles
from pipetrain.report.sweep.slowdown import ratio_cell
from pipetrain.report.text_table import markdown_table

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NAME = "slowdown"
FIGURE, TUNED_FIGURE = f"{NAME}.png", f"{NAME}_tuned.png"
LINES = {
    ("adamw", "pipedream"): "AdamW",
    ("lr_by_delay", "pipedream"): "AdamW, rates by delay",
    ("error_feedback", "pipedream"): "AdamW, error feedback",
    ("adamw", "pipeoptim"): "AdamW, pipeoptim",
    ("adamw", "lwp"): "AdamW, lwp",
    ("paci", "naive_async"): "AdamW, PACI",
    ("nadam", "pipedream"): "NAdam",
    ("muon", "pipedream"): "Muon",
    ("soap", "pipedream"): "SOAP",
}
"""(preset, method) -> name of the line."""
_LOSS = "loss"
_CONTROL = "AdamW"
"""The line that others are compared with: stashed weights and nothing else."""
_PLANNED = len(LINES) * 6 * 3
"""Number of runs: each line at six depths with three seeds."""
_MADE = "<!-- made by `python -m papers pages slowdown`; edits are lost -->"


@dataclass(frozen=True)
class Line:
    """A method with an optimizer.

    Attributes:
        name: of it.
        measured: `loss` or a column of `STEPS_TO_LOSS` -> number of stages -> final loss of the evaluation, or steps to
            the loss, by seed; infinite if a run diverged, or ended before.
        rates: number of stages -> learning rate.
    """

    name: str
    measured: Mapping[str, Mapping[int, Values]]
    rates: Mapping[int, float]

    def slowdown(self, column: str, stages: int) -> Interval | None:
        """Steps with so many stages over those with one, which has the same optimizer; None if not measured."""
        found = self.measured[column]
        if not found.keys() >= {1, stages} or found[1].keys() != found[stages].keys():
            return None
        return slowdown(found[stages], found[1])

    @property
    def depths(self) -> list[int]:
        """Numbers of stages that were measured, ascending."""
        return sorted(self.measured[_LOSS])

    def final_loss(self, stages: int) -> str:
        """Mean and standard deviation of the final losses."""
        losses = list(self.measured[_LOSS].get(stages, {}).values())
        if not losses or not all(map(math.isfinite, losses)):
            return "diverged" if losses else ""
        spread = f" ± {statistics.stdev(losses):.3f}" if len(losses) > 1 else ""
        return f"{statistics.fmean(losses):.3f}{spread}"


def lines_of(results: Path, *, tuned: bool = False) -> tuple[str, list[Line]]:
    """The scale of the stored results, and their lines.

    Args:
        results: the folder of all results.
        tuned: True for the runs whose learning rate was tuned at each depth, False for those at the rate of one stage.
    """
    for scale in (FULL, SMALL):
        found = []
        for (preset, method), name in LINES.items():
            target = ReproductionTarget(f"{NAME}/{preset}", scale)
            kept = target.results(results)
            rows = compared_runs(target, kept) if tuned else ended_runs([kept / "runs.csv"])
            own = [row for row in rows if row["method"] == method]
            if own and not any(row["partition.stages"] == "1" for row in own):
                # one stage is the same under all methods of a preset, and is tuned under one of them
                own += [row for row in rows if row["partition.stages"] == "1"]
            if own:
                found.append(_line(name, own))
        if found:
            return scale, found
    return SMALL, []


def _line(name: str, rows: Sequence[Mapping[str, str]]) -> Line:
    found: dict[str, dict[int, dict[str, float]]] = {column: {} for column in (_LOSS, *STEPS_TO_LOSS)}
    for row in rows:
        for column, by_stages in found.items():
            value = row.get(column)
            by_stages.setdefault(int(row["partition.stages"]), {})[row["seed"]] = float(value) if value else math.inf
    return Line(name, found, {int(row["partition.stages"]): float(row["optimizer.lr"]) for row in rows})


def _depths(lines: Sequence[Line]) -> list[int]:
    return sorted({stages for line in lines for stages in line.depths})


def draw(path: Path, lines: Sequence[Line]) -> None:
    """Draws both slowdowns, infinite ones at the upper edge, and the final loss against the number of stages."""
    depths = _depths(lines)
    with figure(path, (3.7, 3.7, 4.7), 4.2) as panels:
        for panel in panels:
            panel.set_xscale("log", base=2)
            panel.set_xticks(depths, [str(stages) for stages in depths])
            panel.minorticks_off()
            panel.set_xlabel("stages D")
        for panel, (column, share) in zip(panels, STEPS_TO_LOSS.items(), strict=False):
            panel.set_title(f"steps to the loss at {share:.0%}, over D = 1")
            _draw_slowdowns(panel, lines, column, 1 / share)
        panels[0].set_ylabel("slowdown (▲: not reached)")
        panels[-1].set_title("final loss of evaluation")
        label_ends(panels[-1], _draw_losses(panels[-1], lines))


def _draw_slowdowns(panel: "Axes", lines: Sequence[Line], column: str, top: float) -> None:
    for line, look in zip(lines, line_styles([NAME] * len(lines)), strict=True):
        found = {stages: interval for stages in line.depths if (interval := line.slowdown(column, stages))}
        found = {stages: interval for stages, interval in found.items() if not math.isnan(interval.middle)}
        middles = [min(interval.middle, top) for interval in found.values()]
        lost = [stages for stages, interval in found.items() if math.isinf(interval.middle)]
        panel.plot([*found], middles, color=look.color, linestyle=look.dashes, marker="o", markersize=3)
        if lost:  # an empty line without clipping has no place in the layout
            edge = [top] * len(lost)
            panel.plot(lost, edge, color=look.color, linestyle="none", marker="^", markersize=7, clip_on=False)
        for stages, interval in found.items():
            if interval.low < min(interval.high, top):
                panel.vlines(stages, interval.low, min(interval.high, top), color=look.color, linewidth=0.8, alpha=0.5)
    panel.set_ylim(min(panel.get_ylim()[0], 0.95), 1.02 * top)


def _draw_losses(panel: "Axes", lines: Sequence[Line]) -> list[End]:
    ends = []
    for line, look in zip(lines, line_styles([NAME] * len(lines)), strict=True):
        means = {stages: statistics.fmean(losses.values()) for stages, losses in sorted(line.measured[_LOSS].items())}
        finite = {stages: mean for stages, mean in means.items() if math.isfinite(mean)}
        panel.plot([*finite], [*finite.values()], color=look.color, linestyle=look.dashes, marker="o", markersize=3)
        if finite:
            ends.append(End(max(finite), finite[max(finite)], line.name, look.color))
    return ends


def page(scale: str, lines: Sequence[Line], tuned: Sequence[Line]) -> str:
    """Text of the page.

    Args:
        scale: of the runs.
        lines: at the learning rate of one stage.
        tuned: at learning rates of their own.
    """
    return "\n\n".join(_parts(scale, lines, tuned)) + "\n"


def _parts(scale: str, lines: Sequence[Line], tuned: Sequence[Line]) -> Iterator[str]:
    yield "# Slowdown by depth"
    yield _MADE
    yield "\n\n".join(_ABOUT)
    if not lines:
        yield "Nothing has been measured yet."
        return
    yield "## Learning rates of one stage"
    yield _AT_ONE_RATE
    yield from _measured(f"Measured at {scale} scale", lines, FIGURE)
    yield "## Learning rates tuned at each depth"
    yield _AT_OWN_RATES
    if tuned:
        yield from _measured("Measured", tuned, TUNED_FIGURE)
        yield "Learning rate, as tuned:"
        yield _table(tuned, _depths(tuned), lambda line, stages: f"{line.rates[stages]:g}")


def _measured(what: str, lines: Sequence[Line], image: str) -> Iterator[str]:
    runs = sum(len(losses) for line in lines for losses in line.measured[_LOSS].values())
    yield f"**{what}: {runs} of {_PLANNED} runs**, D = {', '.join(map(str, _depths(lines)))}."
    yield "\n".join(f"- {text}" for text in _sentences(lines))
    yield f"![Steps to a loss over those of one stage, and final loss, against the number of stages](images/{image})"
    depths = _depths(lines)
    for column, share in STEPS_TO_LOSS.items():
        yield f"Slowdown to the loss after {share:.0%} of the steps:"
        yield _table(lines, depths[1:], partial(_slowdown_cell, column))
    yield "Final loss of evaluation:"
    yield _table(lines, depths, Line.final_loss)


def _slowdown_cell(column: str, line: Line, stages: int) -> str:
    return ratio_cell(line.slowdown(column, stages))


def _table(lines: Sequence[Line], depths: Sequence[int], cell: Callable[[Line, int], str]) -> str:
    rows = [(line.name, *(cell(line, D) if D in line.depths else "" for D in depths)) for line in lines]
    return "\n".join(markdown_table(("", *(f"D = {stages}" for stages in depths)), rows))


_ABOUT = (
    "How many more steps does an asynchronous pipeline need to the same loss, the deeper it is? This page trains a "
    "`gpt` in simulated pipelines with fine-grained stages, all of which hold weights. The recipe is that "
    "of recent papers: linear warm-up, cosine decay to a tenth, gradients clipped at 1, weight decay 0.1. At the small "
    "scale it has 16 blocks of width 32, and 1,000 minibatches have 8 sequences of 64 characters of Austen's novels.",
    "The *slowdown* is the number of steps to a training loss, over the number that one stage takes with the same "
    "optimizer, as a geometric mean over seeds with its 95 % interval, paired by seed. The target is the loss of one "
    "stage after 70 % or 10 % of its steps; losses are means over 5 % of all steps. As all runs are equally long, "
    "slowdowns above 1.43 and 10 cannot be measured: such a run does not reach the target, and counts as infinite. The "
    "earlier target is still above the entropy of pairs of characters, so it compares the first part of training; the "
    "final losses compare all of it. Targets differ between optimizers, so compare slowdowns, not steps.",
    "All rows but PACI stash weights or predict them; PACI updates after 4 microbatches. Error feedback has c = 1, "
    "NAdam a first β of 0.99, and rates by delay reach their full values after 140 updates at the small scale.",
    "`make slowdown` runs all of it, the first figure first, and continues where it was interrupted. `python -m "
    "papers pages slowdown` writes this page from the stored results.",
)
_AT_ONE_RATE = (
    "The learning rate of each optimizer is the best for one stage, and the same at all depths. At the small scale it "
    "was chosen with seed 0, of rates about three times apart with the best one inside: 0.03 for AdamW and SOAP, 0.01 "
    "for NAdam, 0.06 for Muon. The reported seeds are 1 to 3."
)
_AT_OWN_RATES = (
    "Here [`pipetrain compare`](../compare.md) tunes the learning rate of each row at each depth, one stage included, "
    "by successive halving with seed 1000: from a third to three times the rate above, and further while that helps. "
    "The reported seeds are 0 to 2."
)


def _sentences(lines: Sequence[Line]) -> Iterator[str]:
    """What the intervals say of the deepest pipelines, against AdamW with stashed weights."""
    column = min(STEPS_TO_LOSS, key=lambda name: STEPS_TO_LOSS[name])
    control = next((line for line in lines if line.name == _CONTROL), None)
    if control is None:
        return
    for stages in control.depths[1:]:
        own = control.slowdown(column, stages)
        if own is None:
            continue
        said: dict[str, list[str]] = {"less": [], "more": [], "undecided": []}
        for line in lines:
            if line is not control and (found := line.slowdown(column, stages)):
                said[_compared(line, control, column, stages)].append(f"{line.name} {ratio_cell(found)}")
        texts = [f"{_MEANINGS[kind]}: {', '.join(names)}" for kind, names in said.items() if names]
        yield "; ".join([f"D = {stages}, to the earlier loss: AdamW {ratio_cell(own)}", *texts])


_MEANINGS = {"less": "slowed down less", "more": "slowed down more", "undecided": "undecided"}


def _compared(line: Line, control: Line, column: str, stages: int) -> str:
    """Whether a line is slowed down less than the control, by the interval of the ratio of both slowdowns."""
    ours, theirs = (
        {
            seed: each.measured[column][stages][seed] / each.measured[column][1][seed]
            for seed in each.measured[column][stages]
        }
        for each in (line, control)
    )
    if all(map(math.isinf, theirs.values())) and all(map(math.isfinite, ours.values())):
        return "less"
    held = verdict(ratio(ours, theirs), high=math.nextafter(1.0, 0.0)).holds
    return "undecided" if held is None else "less" if held else "more"
