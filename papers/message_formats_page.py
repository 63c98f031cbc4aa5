"""The page of formats of messages: what each costs under each method, and claims of papers on activations."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from papers import heat_map, svg
from papers.claims import seen
from papers.field_map import NEAR, Reading, reading_of
from papers.heat_map import Cell, Panel
from papers.lines import LOSS, depths_of
from papers.message_formats import FORMATS, METHODS, NAME, PLAIN, SYNCHRONOUS, Measured, Pipelines, measured
from papers.results import STEPS_TO_LOSS
from papers.slowdown import EARLY, compared
from pipetrain.reporting.seed_statistics import Interval, verdict
from pipetrain.reporting.sweep.slowdown import ratio_cell
from pipetrain.runner.terminal.text_table import counted, csv_table, markdown_table, size_of
from pipetrain.runner.tracking.files import write_whole

FIGURE, SLOWDOWN_FIGURE = f"{NAME}.svg", f"{NAME}_slowdown.svg"
_TABLE = "verdicts.csv"
_PLANNED = (len(METHODS) * len(FORMATS) + 1) * 2 * 5
"""Number of runs: at two depths with five seeds, and those of Muon without delay."""
_ACTIVATIONS = {
    "int4": "4-bit integers",
    "int4 bits=2": "2-bit integers",
    "tah": "TAH-Quant, 3 to 4 bits",
    "aq": "AQ-SGD, 4 bits",
    "aq bits=2": "AQ-SGD, 2 bits",
}
"""Format of activations -> its name in the table of claims."""
_LESS = math.nextafter(1.0, 0.0)
_CLAIMS = (
    ("AQ-SGD: activations in 2 to 4 bits do not cost quality", (("aq", PLAIN), ("aq bits=2", PLAIN)), NEAR),
    ("AQ-SGD: changes can have fewer bits than values: less loss than integers of as many bits",
     (("aq", "int4"), ("aq bits=2", "int4 bits=2")), _LESS),
    ("TAH-Quant: activations in 3 to 4 bits do not compromise convergence", (("tah", PLAIN),), NEAR),
    ("TAH-Quant: trains as well as AQ-SGD", (("tah", "aq"),), NEAR),
)  # fmt: skip
"""Claims of the papers, the pairs of formats that they compare, and the largest ratio of losses that supports them."""
_MADE = "<!-- made by `python -m papers pages messages`; edits are lost -->"


def write(results: Path, output: Path) -> Iterator[Path]:
    """Writes the page, its figures, and the table in `results/messages/`; yields the files."""
    found = measured(results)
    if found.every:
        for name, column in ((FIGURE, LOSS), (SLOWDOWN_FIGURE, EARLY)):
            heat_map.draw(output / "images" / name, [each.name for each in found.every], panels(found, column))
            yield output / "images" / name
        write_whole(results / NAME / _TABLE, csv_table(list(table_rows(found))))
        yield results / NAME / _TABLE
    write_whole(output / f"{NAME}.md", page(found))
    yield output / f"{NAME}.md"


def panels(found: Measured, column: str) -> list[Panel]:
    """Final losses or steps to a loss over the synchronous run's: a panel for each depth, a column for each format."""

    def cell(each: Pipelines, form: str, stages: int) -> Cell | None:
        over = each.to_synchronous(column, form, stages)
        if over is None:
            return None
        cost = each.cost(form, stages)
        title = f"{each.name}, {form}, D = {stages}: {ratio_cell(over)}"
        if column == LOSS and form != PLAIN and cost:
            title += f"; final loss over that of plain messages {ratio_cell(cost)}"
        near = column == LOSS and form != PLAIN and cost is not None and reading_of(cost) is Reading.SUPPORTED
        return Cell(over.middle, title, framed=near)

    return [
        Panel(
            f"{'final loss' if column == LOSS else 'steps'}, D = {stages}",
            FORMATS,
            [[cell(each, form, stages) for form in FORMATS] for each in found.every],
            most=1.6 if column == LOSS else 10.0,
        )
        for stages in found.depths
    ]


def table_rows(found: Measured) -> Iterator[Mapping[str, object]]:
    """A row for each method, format and depth."""
    for each in found.every:
        for stages in found.depths:
            for form in (form for form in FORMATS if form in each.lines and stages in each.lines[form].depths):
                line, cost = each.lines[form], each.cost(form, stages)
                row: dict[str, object] = {
                    "method": each.name,
                    "stages": stages,
                    "format": form,
                    "seeds": len(line.losses[stages]),
                    "loss": line.final_loss(stages),
                    "over plain": ratio_cell(cost) if form != PLAIN else "",
                    "match": reading_of(cost).value if cost and form != PLAIN else "",
                    "than gpipe's": _against(each, found.synchronous, form, stages),
                    "over synchronous": ratio_cell(each.to_synchronous(LOSS, form, stages)),
                }
                for column, share in STEPS_TO_LOSS.items():
                    row[f"slowdown to the loss after {share:.0%}"] = ratio_cell(
                        each.to_synchronous(column, form, stages)
                    )
                share = 1.0 if form == PLAIN else each.shares.get(form, math.nan)
                yield {**row, "bytes of a step": round(share * found.step_bytes.get(stages, math.nan))}


def _against(each: Pipelines, control: Pipelines | None, form: str, stages: int) -> str:
    """Verdict on a format's cost against that under GPipe, the control; empty for GPipe itself and plain messages."""
    if control is None or each is control or form == PLAIN:
        return ""
    return compared(each.costs(form, stages), control.costs(form, stages))


def page(found: Measured) -> str:
    """Text of the page."""
    return "\n\n".join(_parts(found)) + "\n"


def _parts(found: Measured) -> Iterator[str]:
    yield "# Formats of messages and stale weights"
    yield _MADE
    yield _QUESTION
    if not found.every:
        yield "Nothing has been measured yet."
        return
    yield f"**Measured at {found.scale} scale: {found.runs} of {_PLANNED} runs.**"
    yield "\n".join(f"- {text}" for text in _sentences(found))
    yield svg.shown(FIGURE, "Final loss by method, format and number of stages")
    yield _FIGURE
    yield "## Cost of each format"
    yield _COST
    for stages in found.depths:
        rows = [[each.name, *(_cost_cell(each, form, stages) for form in FORMATS[1:])] for each in found.every]
        yield "\n".join(markdown_table((f"D = {stages}", *FORMATS[1:]), rows))
    yield "\n".join(markdown_table(("", *FORMATS), _byte_rows(found)))
    yield "## Slowdown"
    yield svg.shown(SLOWDOWN_FIGURE, "Steps to a loss by method, format and number of stages")
    yield _SLOWDOWN
    if found.activations:
        yield "## Claims of AQ-SGD and TAH-Quant"
        yield _CLAIMED
        yield "\n".join(markdown_table(("claim", "", *_cases(found.activations)), _claim_rows(found)))
        yield _LOSSES
        yield "\n".join(markdown_table(("", PLAIN, *_ACTIVATIONS.values()), _activation_rows(found)))
    yield "## How it was measured"
    yield "\n\n".join(_ABOUT)


def _sentences(found: Measured) -> Iterator[str]:
    """How many pipelines match plain messages, and whether formats cost more where weights are stale."""
    cases = [(each, stages) for each in found.every for stages in found.depths]
    against: Counter[str] = Counter()
    for form in FORMATS[1:]:
        costs = [cost for each, stages in cases if (cost := each.cost(form, stages))]
        counts = Counter(reading_of(cost) for cost in costs)
        if costs and (share := found.share(form)):
            said = [f"{_SAID[reading]} in {counts[reading]}" for reading in Reading if counts[reading]]
            yield f"`{form}`, {share:.0%} of the bytes: {', '.join(said)} of {len(costs)} pipelines."
        against.update(filter(None, (_against(each, found.synchronous, form, stages) for each, stages in cases)))
    if against:
        listed = [f"{word} in {against[word]}" for word in ("less", "same", "more", "undecided") if against[word]]
        of = counted(against.total(), "comparison", "comparisons")
        yield f"The cost of a format with stale weights, against that under `gpipe`: {', '.join(listed)} of {of}."


_SAID = {
    Reading.SUPPORTED: "shown to cost at most 5 %",
    Reading.REFUTED: "shown to cost more",
    Reading.UNDECIDED: "undecided",
}


def _cost_cell(each: Pipelines, form: str, stages: int) -> str:
    cost = each.cost(form, stages)
    if cost is None:
        return ""
    marks = {Reading.SUPPORTED: "✓", Reading.REFUTED: "✗", Reading.UNDECIDED: ""}
    return f"{ratio_cell(cost)} {marks[reading_of(cost)]}".strip()


def _byte_rows(found: Measured) -> Iterator[Sequence[str]]:
    shares = [found.share(form) for form in FORMATS[1:]]
    for stages, plain in sorted(found.step_bytes.items()):
        sent = [size_of(plain * share) if share else "" for share in shares]
        yield f"bytes of a step, D = {stages}", size_of(plain), *sent


def _cases(activations: Sequence[Pipelines]) -> list[str]:
    return [f"{each.name}, D = {stages}" for each in activations for stages in _depths(each)]


def _depths(each: Pipelines) -> list[int]:
    return depths_of(list(each.lines.values()))


def _claim_rows(found: Measured) -> Iterator[Sequence[str]]:
    """A row for each claim: the verdict of the synchronous runs, then the answer of each pipeline."""
    for text, pairs, limit in _CLAIMS:
        cells, answers = [], list[bool | None]()
        for each in found.activations:
            for stages in _depths(each):
                holds = [_holds(each.cost(form, stages, other), limit) for form, other in pairs]
                cells.append(", ".join(_ANSWERS[answer] for answer in holds))
                answers += holds if each.name == SYNCHRONOUS else []
        yield text, seen(answers.count(True), answers.count(False), len(answers), found.scale), *cells


_ANSWERS = {True: "yes", False: "no", None: "undecided"}


def _holds(cost: Interval | None, limit: float) -> bool | None:
    """True if the ratio of losses is at most the limit, False if it is above; None if undecided or not measured."""
    return None if cost is None else verdict(cost, high=limit).holds


def _activation_rows(found: Measured) -> Iterator[Sequence[str]]:
    for each in found.activations:
        for stages in _depths(each):
            lines = [each.lines.get(form) for form in (PLAIN, *_ACTIVATIONS)]
            yield f"{each.name}, D = {stages}", *(line.final_loss(stages) if line else "" for line in lines)
    shares = found.activations[0].shares
    sent = [f"{_of_activations(shares[form]):.0%}" if form in shares else "" for form in _ACTIVATIONS]
    yield "bytes of activations", "100%", *sent


def _of_activations(share: float) -> float:
    """The share of plain bytes that activations take, from that of a step, half of whose bytes are plain gradients."""
    return 2 * share - 1


_QUESTION = (
    "[Formats](../messages.md) send fewer bytes between stages, and change what arrives. Does a format cost more where "
    "weights are stale? A `gpt` was trained in simulated pipelines of 2 and 8 stages, with each format for activations "
    "and gradients. No paper has these results. All of it is at a small scale: 8 blocks of width 32, and 600 "
    "minibatches of 8 sequences of 32 characters."
)
_FIGURE = (
    "*Final loss over that of `gpipe` with plain messages, the same optimizer and as many stages. Dark: worse. Framed: "
    f"a format that is shown to cost at most 5 % against plain messages under the same method. Opened by itself, the "
    f"figure shows intervals as tooltips; [{_TABLE}](../../results/{NAME}/{_TABLE}) has all numbers.*"
)
_COST = (
    "The final loss over that of plain messages under the same method, paired by seed, with its 95 % interval. ✓: "
    f"shown to be at most {NEAR:g}; ✗: shown to be above; otherwise undecided. Intervals are not corrected for "
    "multiple comparisons."
)
_SLOWDOWN = (
    "*Steps to the training loss that `gpipe` in two stages with plain messages has after 10 % of its steps, over its "
    "own steps in as many stages; ∞: not reached.*"
)
_CLAIMED = (
    "Activations alone have a format here, gradients are plain, and samples come four times, as AQ-SGD sends changes "
    "since the last epoch; its first epoch is plain. The verdict is that of `gpipe`, as both papers train "
    "synchronously: *yes* if a ratio of losses is shown to be at most 1.05, or, where one is claimed to be better, "
    "below 1. Where there are two answers, they are those of 4 and 2 bits. The papers were not available in full: "
    "claims are those of their abstracts, and of AQ-SGD's comparison with direct quantization. How much faster formats "
    "train over a slow network depends on the network, and is not judged; "
    "[messages.md](../messages.md#a-slow-link) has a measurement."
)
_LOSSES = "Final losses, mean and standard deviation over seeds:"
_ABOUT = (
    "The recipe is that of [slowdown.md](slowdown.md): linear warm-up, cosine decay to a tenth, weight decay 0.1, and "
    "gradients clipped at a norm of 1: of all stages under `gpipe`, of each stage under asynchronous methods. The "
    "learning rate is the best of the synchronous run in two stages with plain messages, of rates about three times "
    "apart with seed 0: 0.03 for AdamW, 0.06 for Muon. All formats and methods have the same rate; one tuned for each "
    "may be better. The reported seeds are 1 to 5.",
    "A minibatch has one microbatch, and D of them under `pipedream_2bw`, whose stages read weights one update old. "
    "`delayed, Muon` trains with weights that are one update old in all stages. Formats have their default options: "
    "groups of 64 values rounded to nearest, a tenth of the values for `topk`, with error feedback for gradients. "
    "TAH-Quant has tiles of 32, as the network is narrow. Evaluations use plain messages.",
    "`make messages` runs all of it, and continues where it was interrupted: two hours, with two or three presets side "
    "by side on two cores that other work shared. `python -m papers pages messages` writes this page from the stored "
    "results.",
)
