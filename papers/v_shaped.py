"""The page of `1f1b_v`: final losses and slowdowns with two stages per process in a V, against those of `1f1b`."""

import math
import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from papers import forest, slowdown, svg
from papers.claims import Answer, Verdict, seen
from papers.difference import Effect
from papers.lines import LOSS, Line
from papers.paper import Claim
from papers.slowdown import EARLY, compared, line_of, over_one_stage
from papers.targets import FULL, SMALL, ReproductionTarget
from pipetrain.reporting.seed_statistics import Interval, Values, difference
from pipetrain.reporting.sweep.slowdown import ratio_cell
from pipetrain.runner.terminal.text_table import counted, markdown_table
from pipetrain.runner.tracking.files import write_whole

NAME = "v_shaped"
FIGURE = f"{NAME}.svg"
LINES = (("adamw", "pipedream"), ("adamw", "pipeoptim"), ("nadam", "pipedream"), ("soap", "pipedream"))
"""Presets of `1f1b`, and the method; that of `1f1b_v` has the same name after `v_`."""
_NUMBERS = (8, 16, 32)
"""The numbers of processes that are compared."""
_PLANNED = len(LINES) * len(_NUMBERS) * 3 + len({preset for preset, _ in LINES}) * 3
"""Number of runs in a V: each line on each number of processes, and each preset on one, with three seeds."""
_MADE = "<!-- made by `python -m papers pages v_shaped`; edits are lost -->"


class Pair(NamedTuple):
    """A method with an optimizer under both schedules.

    Attributes:
        preset: of `1f1b`.
        flat: `1f1b`, with as many stages as processes.
        v: `1f1b_v`, with twice as many.
    """

    preset: str
    flat: Line
    v: Line

    @property
    def numbers(self) -> list[int]:
        """The numbers of processes that both were measured with."""
        return [count for count in _NUMBERS if count in self.flat.depths and 2 * count in self.v.depths]

    def change(self, numbers: Sequence[int]) -> Interval:
        """The final loss of `1f1b_v` minus that of `1f1b`, on average over some numbers of processes."""
        return _change([self.v.losses[2 * count] for count in numbers], [self.flat.losses[count] for count in numbers])

    def at_equal_depth(self, stages: int) -> Interval:
        """The final loss of `1f1b_v` minus that of `1f1b` with as many stages, on twice as many processes."""
        return _change([self.v.losses[stages]], [self.flat.losses[stages]])

    def slowdowns(self, count: int) -> tuple[Interval | None, Interval | None]:
        """To the earlier loss, over one process, of `1f1b` and of `1f1b_v`."""
        alone = self.v.measured[EARLY].get(2)
        return self.flat.slowdown(EARLY, count), self.v.slowdown(EARLY, 2 * count, alone) if alone else None

    def slowed(self, count: int) -> str:
        """Verdict on the slowdown of `1f1b_v` against that of `1f1b`: less, more, same or undecided."""
        if None in self.slowdowns(count):
            return "undecided"
        return compared(over_one_stage(self.v, EARLY, 2 * count, one=2), over_one_stage(self.flat, EARLY, count))


def _change(ours: Sequence[Values], theirs: Sequence[Values]) -> Interval:
    seeds = set.intersection(*(set(values) for values in (*ours, *theirs)))
    means = [{seed: statistics.fmean(each[seed] for each in side) for seed in sorted(seeds)} for side in (ours, theirs)]
    return difference(*means)


def pairs_of(results: Path) -> tuple[str, list[Pair]]:
    """The scale of the stored results, and what was measured under both schedules."""
    for scale in (FULL, SMALL):
        found = []
        for preset, method in LINES:
            flat, v = (
                line_of(results, ReproductionTarget(f"slowdown/{prefix}{preset}", scale), method, name, one=one)
                for name, prefix, one in ((slowdown.LINES[preset, method], "", "1"), ("1f1b_v", "v_", "2"))
            )
            if flat and v and (pair := Pair(preset, flat, v)).numbers:
                found.append(pair)
        if found:
            return scale, found
    return SMALL, []


def write(results: Path, output: Path) -> Iterator[Path]:
    """Writes the page and its figure; yields the files."""
    scale, pairs = pairs_of(results)
    if pairs:
        forest.draw(output / "images" / FIGURE, comparisons(pairs), lambda _: "gpt")
        yield output / "images" / FIGURE
    write_whole(output / f"{NAME}.md", page(scale, pairs))
    yield output / f"{NAME}.md"


def page(scale: str, pairs: Sequence[Pair]) -> str:
    """Text of the page."""
    return "\n\n".join(_parts(scale, pairs)) + "\n"


def _parts(scale: str, pairs: Sequence[Pair]) -> Iterator[str]:
    yield "# Two stages per process in a V"
    yield _MADE
    if not pairs:
        yield _ABOUT
        yield "Nothing has been measured yet."
        return
    yield _ABOUT
    yield "\n".join(_sentences(pairs))
    yield svg.shown(FIGURE, "Final loss of 1f1b_v against 1f1b")
    yield f"*How much less the final loss of `1f1b_v` is, at {scale} scale. ● less, ✕ more, ○ undecided.*"
    yield "## The same number of processes"
    yield _HOW
    yield "\n".join(markdown_table(_HEADS, _rows(pairs)))
    if equal := list(_rows_at_equal_depth(pairs)):
        yield "## The same number of stages"
        yield _EQUAL_DEPTH
        yield "\n".join(markdown_table(_EQUAL_HEADS, equal))
    yield "## What is not shown"
    yield "\n".join(f"- {text}" for text in (*_missing(pairs), *_NOT_SHOWN))


def _said(change: Interval) -> str:
    """Verdict on the loss of `1f1b_v`: less, more or undecided."""
    if not change.decided:
        return "undecided"
    return "less" if change.middle < 0 else "more"


def _sentences(pairs: Sequence[Pair]) -> Iterator[str]:
    """How many comparisons are decided, and how."""
    for what, of in (
        ("On the same processes, the final loss of `1f1b_v`", [_said(p.change([n])) for p in pairs for n in p.numbers]),
        ("On average over P, it", [_said(p.change(p.numbers)) for p in pairs if len(p.numbers) > 1]),
        ("With the same stages on half as many processes, it", [_said(p.at_equal_depth(n)) for p, n in _equal(pairs)]),
        ("The slowdown", [p.slowed(n) for p in pairs for n in p.numbers]),
    ):
        if of:
            counts = Counter(of)
            found = [f"{word} in {counts[word]}" for word in ("less", "more", "same", "undecided") if counts[word]]
            yield f"- {what} is {', '.join(found)} of {counted(len(of), 'comparison', 'comparisons')}."


_HEADS = ("", "P", "`1f1b`", "`1f1b_v`", "difference", "loss", "slowdown, `1f1b`", "`1f1b_v`", "slowdown")
_EQUAL_HEADS = ("", "D", "`1f1b`, D processes", "`1f1b_v`, D/2", "difference", "loss")


def _rows(pairs: Sequence[Pair]) -> Iterator[tuple[str, ...]]:
    for pair in pairs:
        for count in pair.numbers:
            losses = pair.flat.final_loss(count), pair.v.final_loss(2 * count)
            slowed = [*map(ratio_cell, pair.slowdowns(count)), pair.slowed(count)]
            change = pair.change([count])
            yield pair.flat.name, f"{count}", *losses, _cell(change), _said(change), *slowed
        if len(pair.numbers) > 1:
            change = pair.change(pair.numbers)
            yield pair.flat.name, "mean", "", "", _cell(change), _said(change), "", "", ""


def _equal(pairs: Sequence[Pair]) -> list[tuple[Pair, int]]:
    """The pairs and depths that both schedules were measured with."""
    return [(pair, depth) for pair in pairs for depth in _NUMBERS if {depth} <= {*pair.flat.depths} & {*pair.v.depths}]


def _rows_at_equal_depth(pairs: Sequence[Pair]) -> Iterator[tuple[str, ...]]:
    for pair, depth in _equal(pairs):
        change = pair.at_equal_depth(depth)
        losses = pair.flat.final_loss(depth), pair.v.final_loss(depth)
        yield pair.flat.name, f"{depth}", *losses, _cell(change), _said(change)


def _cell(change: Interval) -> str:
    if not math.isfinite(change.low + change.high):
        return f"{change.middle:+.3f}"
    return f"{change.middle:+.3f} ({change.low:+.3f} to {change.high:+.3f})"


def _missing(pairs: Sequence[Pair]) -> Iterator[str]:
    """Runs that are still missing, and the effect of clipping alone."""
    # one process computes the same under all methods of a preset
    runs = {
        (pair.preset, pair.flat.name if depth > 2 else "", depth, seed)
        for pair in pairs
        for depth, values in pair.v.losses.items()
        for seed in values
    }
    measured = {pair.flat.name: pair.numbers for pair in pairs}
    lacking = {
        name: sorted({*_NUMBERS} - {*measured.get(name, ())}) for name in (slowdown.LINES[each] for each in LINES)
    }
    listed = "; ".join(f"{name} on {', '.join(map(str, counts))}" for name, counts in lacking.items() if counts)
    yield f"**Runs.** {len(runs)} of {_PLANNED} runs in a V are stored{f', not: {listed} processes' if listed else ''}."
    alone = {pair.preset: pair for pair in reversed(pairs) if 2 in pair.v.losses}
    changes = [f"{pair.flat.name} {_cell(pair.change([1]))}" for pair in reversed(alone.values())]
    if changes:
        yield _CLIPPING.format(", ".join(changes))


_ABOUT = (
    "On the same P processes, [`1f1b_v`](../methods.md#1f1b_v-against-1f1b) has fewer minibatches in flight than "
    "`1f1b`: weights are less stale, and fewer versions are held. Does that train better? These runs repeat those of "
    "[slowdown.md](slowdown.md) with D = 2P stages of half the size: the same `gpt`, data, settings, learning rates of "
    "one stage, and seeds. `make slowdown-v` runs them."
)
_HOW = (
    "A difference is the final loss of evaluation of `1f1b_v` minus that of `1f1b`, paired by seed, with its 95 % "
    "interval; *less* or *more* if that excludes 0. `mean` is that of each seed over all P. The slowdown is the number "
    "of steps to the loss that one process has after 10 % of its steps, over that process's; the interval of the ratio "
    "of both decides. No interval is corrected for multiple comparisons: without any effect, one in twenty is decided."
)
_EQUAL_DEPTH = (
    "The same stages, clipped in the same way, on half as many processes: a third of the minibatches is in flight."
)
_CLIPPING = (
    "**Clipping.** Gradients are clipped at 1 per stage, and a V has twice as many: differences on the same processes "
    "include that. On one process, where nothing is stale, the loss of two stages minus that of one is {}."
)
_NOT_SHOWN = (
    "**Scale.** Simulated runs of a model with 210,000 weights, 1,000 steps long, at learning rates chosen for one "
    "stage; none at the scale of a paper, none with rates tuned at each depth.",
    "**Time and memory.** The order assumes that F, B and W take equally long: processes wait where they do not, which "
    "changes no loss. An [order for their own durations](../speed.md#two-stages-per-process-in-a-v) does without the "
    "waits; if W is as short as in many networks, its weights are as stale as under `1f1b`. A V doubles the messages: "
    "each minibatch crosses 2P - 2 times between processes, and back, in place of P - 1. Neither is measured here.",
)


def comparisons(pairs: Sequence[Pair]) -> list[Claim]:
    """The differences, as parts of claims that the final loss is less: on the same processes, in the same stages."""
    same = [(pair, "P", {count: pair.change([count]) for count in pair.numbers}) for pair in pairs]
    equal = [
        (pair, "D", {depth: pair.at_equal_depth(depth) for each, depth in _equal(pairs) if each is pair})
        for pair in pairs
    ]
    claims: list[Claim] = []
    for pair, size, changes in (*same, *(each for each in equal if each[2])):
        answers = [_answer(f"{size} = {count}", change, pair.flat.losses[count]) for count, change in changes.items()]
        less, more = (sum(each.holds is holds for each in answers) for holds in (True, False))
        verdict = Verdict(seen(less, more, len(answers), SMALL), [], answers)
        claims.append(Claim(len(claims) + 1, {"claim": f"{pair.flat.name}, {_WHERE[size]}"}, verdict))
    return claims


def _answer(where: str, change: Interval, flat: Values) -> Answer:
    """The gain of `1f1b_v` in one of the comparisons."""
    gain = replace(change, middle=-change.middle, low=-change.high, high=-change.low)
    effect = Effect(f"1f1b_v, {where}", "1f1b", LOSS, gain, statistics.fmean(flat.values()), limit=0.0)
    return Answer((where,), _HOLDS[_said(change)], f"{where}: {_cell(change)}", SMALL, effect=effect)


_WHERE = {"P": "on the same P processes", "D": "in the same D stages, on D/2 processes"}
_HOLDS = {"less": True, "more": False, "undecided": None}
