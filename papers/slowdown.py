"""The page of slowdowns: how many more steps a deeper pipeline needs to a loss, by method and optimizer."""

import math
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from papers.compared import compared_runs
from papers.lines import LOSS, STAGES, Line, depths_of, table
from papers.results import STEPS_TO_LOSS, ended_runs, made_by
from papers.targets import FULL, SMALL, ReproductionTarget
from pipetrain.reporting.seed_statistics import Values, ratio, verdict
from pipetrain.reporting.sweep.slowdown import ratio_cell
from pipetrain.runner.terminal.text_table import markdown_table

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
        rows = ended_runs([kept / "runs.csv"] if made_by(target.words(Path("DIR")), kept) else [])
    own = [row for row in rows if row["method"] == method]
    if own and not any(row[STAGES] == one for row in own):
        own += [row for row in rows if row[STAGES] == one]
    return Line.of(name, own) if own else None


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
        yield from _measured("Measured", tuned, TUNED_FIGURE, _shared(tuned))
        yield "Learning rate, as tuned:"
        yield table(tuned, depths_of(tuned), lambda line, stages: f"{line.rates[stages]:g}")


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
    yield "\n".join(f"- {text}" for text in _sentences(lines))
    yield f"![Steps to a loss over those of one stage, and final loss, against the number of stages](images/{image})"
    depths = depths_of(lines)
    for column, share in STEPS_TO_LOSS.items():
        yield f"Slowdown to the loss after {share:.0%} of the steps:"
        yield table(lines, depths[1:], partial(_slowdown_cell, column))
    yield "Final loss of evaluation:"
    yield table(lines, depths, Line.final_loss)
    if rows := list(_next_to_papers(lines)):
        yield (
            "What the papers report, and what is seen here. Slowdowns are those to the earlier loss. The cost is the "
            "final loss over that of one stage. Of both, the 95 % interval of the ratio to AdamW's says whether it is "
            "less:"
        )
        heads = ("reported", "D", "slowdown", "of AdamW", "", "cost", "of AdamW", "")
        yield "\n".join(markdown_table(heads, rows))


def _slowdown_cell(column: str, line: Line, stages: int) -> str:
    return ratio_cell(line.slowdown(column, stages))


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
    "final losses compare all of it. Targets differ between optimizers, so compare slowdowns, not steps. A target is "
    "the mean over the seeds of one stage; where one of them does not reach it, there is no slowdown but a dash.",
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
    """What the intervals say of the deepest pipelines, against AdamW with stashed weights."""
    control = next((line for line in lines if line.name == _CONTROL), None)
    if control is None:
        return
    for stages in control.depths[1:]:
        own = control.slowdown(EARLY, stages)
        if own is None:
            continue
        said: dict[str, list[str]] = {kind: [] for kind in _MEANINGS}
        for line in lines:
            if line is not control and (found := line.slowdown(EARLY, stages)):
                kind = compared(*(over_one_stage(each, EARLY, stages) for each in (line, control)))
                if kind == "undecided" and math.isinf(found.middle):
                    said["lost"].append(line.name)
                else:
                    said[kind].append(f"{line.name} {ratio_cell(found)}")
        texts = [f"{_MEANINGS[kind]}: {', '.join(names)}" for kind, names in said.items() if names]
        yield "; ".join([f"D = {stages}, to the earlier loss: AdamW {ratio_cell(own)}", *texts])


_MEANINGS = {
    "less": "slowed down less",
    "same": "the same bits",
    "more": "slowed down more",
    "undecided": "undecided",
    "lost": "infinite, too",
}


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
