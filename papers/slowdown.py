"""The page of slowdowns: how many more steps a deeper pipeline needs to a loss, by method and optimizer."""

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from papers import heat_map, svg
from papers.compared import compared_runs
from papers.heat_map import Cell, Panel
from papers.lines import LOSS, STAGES, Line, depths_of
from papers.results import STEPS_TO_LOSS, rows_made_by
from papers.targets import FULL, SMALL, ReproductionTarget
from pipetrain.reporting.seed_statistics import Interval, Values, ratio, verdict
from pipetrain.reporting.sweep.slowdown import ratio_cell
from pipetrain.runner.terminal.text_table import csv_table, markdown_table
from pipetrain.runner.tracking.files import write_whole

NAME = "slowdown"
FIGURE, TUNED_FIGURE = f"{NAME}.svg", f"{NAME}_tuned.svg"
_TABLE = "verdicts.csv"
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
EARLY = min(STEPS_TO_LOSS, key=lambda name: STEPS_TO_LOSS[name])
_CONTROL = "AdamW"
"""The line that others are compared with: stashed weights and nothing else."""
_PLANNED = len(LINES) * 6 * 3
"""Number of runs: each line at six depths with three seeds."""
_REPORTED = (
    ("32 stages slow AdamW down 4.24 times with rates by delay, 5.81 times without (Jung et al. 2026)",
     "AdamW, rates by delay", 32),
    ("32 stages slow AdamW in a rotated basis down 1.27 times (Jung et al. 2026)", "SOAP", 32),
    ("NAdam with a momentum of 0.99 trains as well in eight stages as without a pipeline (Ajanthan et al. 2025)",
     "NAdam", 8),
    ("a delay of one step costs Muon less than AdamW (Zmushko et al. 2026)", "Muon", 2),
    ("it costs SOAP less (Zmushko et al. 2026)", "SOAP", 2),
    ("it costs AdamW less with error feedback (Zmushko et al. 2026)", "AdamW, error feedback", 2),
    ("PACI trains as well in eight stages as with a flush (Elam et al. 2026)", "AdamW, PACI", 8),
)  # fmt: skip
"""What papers report, of language models of 95M to 360M parameters, and the line and depth that are nearest to it."""
_MADE = "<!-- made by `python -m papers pages slowdown`; edits are lost -->"


def lines_of(results: Path, *, tuned: bool = False) -> tuple[str, list[Line]]:
    """The scale of the stored results, and their lines.

    Args:
        results: the folder of all results.
        tuned: True for the runs whose learning rate was tuned at each depth, False for those at the rate of one stage.
    """
    for scale in (FULL, SMALL):
        every = (
            line_of(results, ReproductionTarget(f"{NAME}/{preset}", scale), method, name, tuned=tuned)
            for (preset, method), name in LINES.items()
        )
        if found := [line for line in every if line]:
            return scale, found
    return SMALL, []


def line_of(
    results: Path, target: ReproductionTarget, method: str, name: str, *, tuned: bool = False, one: str = "1"
) -> Line | None:
    """The line of a method of a preset, from stored results of today's settings; None if there are none.

    Args:
        results: the folder of all results.
        target: the preset at a scale.
        method: the line's.
        name: of the line.
        tuned: True for the runs of comparisons, False for those of sweeps.
        one: number of stages that all methods of the preset compute the same with, and may have in one line only.
    """
    kept = target.results(results)
    if tuned:
        rows = [row for _, each in compared_runs(target, kept) for row in each]
    else:
        rows = rows_made_by(target.words(Path("DIR")), kept)
    own = [row for row in rows if row["method"] == method]
    if own and not any(row[STAGES] == one for row in own):
        own += [row for row in rows if row[STAGES] == one]
    return Line.of(name, own) if own else None


def write(results: Path, output: Path) -> Iterator[Path]:
    """Writes the page, its figures, and the table in `results/slowdown/`; yields the files."""
    (scale, lines), (_, tuned) = (lines_of(results, tuned=each) for each in (False, True))
    for name, found in ((FIGURE, lines), (TUNED_FIGURE, tuned)):
        if found:
            heat_map.draw(output / "images" / name, [line.name for line in found], panels(found))
            yield output / "images" / name
    if lines:
        rows = [*slowdown_rows("of one stage", lines), *slowdown_rows("tuned at each depth", tuned)]
        write_whole(results / NAME / _TABLE, csv_table(rows))
        yield results / NAME / _TABLE
    write_whole(output / f"{NAME}.md", page(scale, lines, tuned))
    yield output / f"{NAME}.md"


def panels(lines: Sequence[Line]) -> list[Panel]:
    """Slowdowns to both losses, and final losses over those of one stage."""
    depths = depths_of(lines)[1:]
    heads = [f"D = {depths[0]}", *map(str, depths[1:])] if depths else []
    titles = {column: f"steps, loss at {share:.0%}" for column, share in STEPS_TO_LOSS.items()} | {LOSS: "final loss"}
    order = sorted(titles, key=lambda column: (column == LOSS, STEPS_TO_LOSS.get(column, 0)))
    control = _control(lines)
    return [
        Panel(
            titles[column],
            heads,
            [[_cell(line, column, depth, control) for depth in depths] for line in lines],
            most=1.6 if column == LOSS else 10.0,
        )
        for column in order
    ]


def _control(lines: Sequence[Line]) -> Line | None:
    return next((line for line in lines if line.name == _CONTROL), None)


def _cell(line: Line, column: str, stages: int, control: Line | None) -> Cell | None:
    """The ratio to one stage, and whether it is less than AdamW's."""
    found = _over_one_stage(line, column, stages)
    if found is None:
        return None
    said = _against(line, column, stages, control)
    title = f"{line.name}, D = {stages}: {ratio_cell(found)}{f', {said} than AdamW' if said in _ORDERS else ''}"
    undecided = said == "undecided" and math.isfinite(found.middle)
    return Cell(found.middle, title, framed=said == "less", undecided=undecided)


_ORDERS = ("less", "more")


def _over_one_stage(line: Line, column: str, stages: int) -> Interval | None:
    if column != LOSS:
        return line.slowdown(column, stages)
    values = over_one_stage(line, LOSS, stages) if {1, stages} <= set(line.depths) else {}
    return ratio(values, dict.fromkeys(values, 1.0)) if values else None


def _against(line: Line, column: str, stages: int, control: Line | None) -> str:
    """What the interval says of the ratio to one stage, against AdamW's; empty for AdamW itself."""
    if control is None or line is control or not all({1, stages} <= set(each.depths) for each in (line, control)):
        return ""
    return compared(*(over_one_stage(each, column, stages) for each in (line, control)))


def slowdown_rows(rates: str, lines: Sequence[Line]) -> Iterator[Mapping[str, object]]:
    """A row for each line at each depth."""
    control = _control(lines)
    for line in lines:
        for stages in line.depths:
            row: dict[str, object] = {
                "rates": rates,
                "line": line.name,
                "stages": stages,
                "seeds": len(line.losses[stages]),
                "rate": f"{line.rates[stages]:g}",
                "loss": line.final_loss(stages),
            }
            for column in (*STEPS_TO_LOSS, LOSS):
                what = "final loss" if column == LOSS else f"slowdown to the loss after {STEPS_TO_LOSS[column]:.0%}"
                known = _over_one_stage(line, column, stages) if stages > 1 else None
                row[what] = ratio_cell(known) if stages > 1 else ""
                row[f"{what}, than AdamW's"] = _against(line, column, stages, control) if stages > 1 else ""
            yield row


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
    yield _QUESTION
    if not lines:
        yield "Nothing has been measured yet."
        return
    yield "## Learning rates of one stage"
    yield from _measured(f"Measured at {scale} scale", lines, FIGURE)
    yield _FIGURE
    yield _AT_ONE_RATE
    yield "## Learning rates tuned at each depth"
    if tuned:
        yield from _measured("Measured", tuned, TUNED_FIGURE, _shared(tuned))
    yield _AT_OWN_RATES
    if rows := list(_next_to_papers(lines)):
        yield "## What the papers report"
        yield _REPORTED_HOW
        yield "\n".join(markdown_table(("reported", "D", "slowdown", "of AdamW", "", "cost", "of AdamW", ""), rows))
    yield "## How it was measured"
    yield "\n\n".join(_ABOUT)


def _shared(lines: Sequence[Line]) -> int:
    """Number of runs of one stage that stand in a further line of their preset, too."""
    presets = {name: preset for (preset, _), name in LINES.items()}
    shared, seen = 0, set()
    for line in lines:
        shared += len(line.losses.get(1, ())) if presets[line.name] in seen else 0
        seen.add(presets[line.name])
    return shared


def _measured(what: str, lines: Sequence[Line], image: str, shared: int = 0) -> Iterator[str]:
    runs = sum(len(losses) for line in lines for losses in line.losses.values()) - shared
    yield f"**{what}: {runs} of {_PLANNED - shared} runs**, D = {', '.join(map(str, depths_of(lines)))}."
    if said := "\n".join(f"- {text}" for text in _sentences(lines)):
        yield said
    yield svg.shown(image, "Steps to a loss and final loss over those of one stage")


_QUESTION = (
    "How many more steps does an asynchronous pipeline need to the same loss, the deeper it is? A `gpt` was trained in "
    "simulated pipelines of up to 32 stages, with stashed or predicted weights, under several optimizers and remedies. "
    "All of it is at a small scale: 16 blocks of width 32, and 1,000 minibatches of 8 sequences of 64 characters."
)
_FIGURE = (
    "*Steps to a loss, and the final loss, over those of one stage with the same optimizer; ∞: not reached. Framed: "
    "less than AdamW's, which stashes weights and nothing else; ?: undecided. Opened by itself, the figure shows "
    f"intervals as tooltips; [{_TABLE}](../../results/{NAME}/{_TABLE}) has all numbers.*"
)
_REPORTED_HOW = (
    "What the papers report, and what is seen here at the learning rates of one stage. Slowdowns are those to the "
    "earlier loss. The cost is the final loss over that of one stage. Of both, the 95 % interval of the ratio to "
    "AdamW's says whether it is less:"
)
_ABOUT = (
    "All stages hold weights. The recipe is that of recent papers: linear warm-up, cosine decay to a tenth, gradients"
    " clipped at 1, weight decay 0.1. The *slowdown* is a geometric mean over seeds with its 95 % interval, paired by"
    " seed. The target is the training loss of one stage after 70 % or 10 % of its steps; losses are means over 5 % "
    "of all steps. As all runs are equally long, slowdowns above 1.43 and 10 cannot be measured: such a run does not "
    "reach the target, and counts as infinite. The earlier target is still above the entropy of pairs of characters, "
    "so it compares the first part of training; the final losses compare all of it. Targets differ between "
    "optimizers, so compare slowdowns, not steps. Where a seed of one stage does not reach the target, there is no "
    "slowdown.",
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
    "Here [`pipetrain compare`](../compare.md) tuned the learning rate of each row at each depth, one stage included, "
    "with seed 1000: from a third to three times the rate above, and further while that helped. All rates were "
    "trained for half of the steps, and the better half of them for all steps. The reported seeds are 0 to 2. As one "
    "seed tunes, a rate may not be the best one: where the rates of a row jump "
    "from one depth to the next, its slowdowns may do so for that reason alone. The intervals do not cover that "
    "choice, and that of one stage shifts all slowdowns of a row."
)


def _sentences(lines: Sequence[Line]) -> Iterator[str]:
    """The slowdown of AdamW with stashed weights, and what is slowed down less, as far as anything is."""
    control = _control(lines)
    for stages in control.depths[1:] if control else ():
        own = control.slowdown(EARLY, stages) if control else None
        less = [line.name for line in lines if _against(line, EARLY, stages, control) == "less"]
        if own and (less or math.isfinite(own.middle)):
            names = "; ".join(less) or "nothing"
            yield f"D = {stages}, to the loss at {STEPS_TO_LOSS[EARLY]:.0%}: AdamW {ratio_cell(own)}; less: {names}."


def _next_to_papers(lines: Sequence[Line]) -> Iterator[tuple[str, ...]]:
    """A row for each of the reported results whose line and depth were measured."""
    by_name = {line.name: line for line in lines}
    control = by_name.get(_CONTROL)
    for text, name, stages in _REPORTED:
        line = by_name.get(name)
        if control and line and all({1, stages} <= set(each.depths) for each in (line, control)):
            cells = []
            for column in (EARLY, LOSS):
                both = [over_one_stage(each, column, stages) for each in (line, control)]
                cells += [*map(_over_one_stage_cell, both), compared(*both)]
            yield text, f"{stages}", *cells


def over_one_stage(line: Line, column: str, stages: int, one: int = 1) -> Values:
    """Steps or losses by seed, over those of one stage, which may have other seeds in part; empty if one has none.

    Args:
        line: that has both depths.
        column: of its measurements.
        stages: the depth.
        one: the depth that stands for one stage.
    """
    own, alone = line.measured[column][stages], line.measured[column][one]
    if not all(map(math.isfinite, alone.values())):
        return {}
    return {seed: own[seed] / alone[seed] for seed in own.keys() & alone.keys()}


def _over_one_stage_cell(values: Values) -> str:
    return ratio_cell(ratio(values, dict.fromkeys(values, 1.0)) if values else None)


def compared(ours: Values, theirs: Values) -> str:
    """`less`, `same`, `more` or `undecided`: ours, over one stage, against theirs, by the interval of the ratio."""
    if not ours or not theirs:
        return "undecided"
    if ours == theirs and all(map(math.isfinite, ours.values())):
        return "same"
    if all(map(math.isinf, theirs.values())) and all(map(math.isfinite, ours.values())):
        return "less"
    held = verdict(ratio(ours, theirs), high=math.nextafter(1.0, 0.0)).holds
    return "undecided" if held is None else "less" if held else "more"
