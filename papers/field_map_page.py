"""The page of the map of the field: heat maps of losses and slowdowns by depth, and the table behind them."""

import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

from papers import heat_map, svg
from papers.closed_forms import CLOSED, ClosedForm, Position, utilization_of_gpipe
from papers.field_map import HYBRIDS, NAME, PLAIN, FieldMap, Reading, maps_of, reading_of
from papers.heat_map import Cell, Panel
from papers.lines import Line, depths_of
from papers.presets import composed, preset
from papers.results import STEPS_TO_LOSS
from papers.targets import ReproductionTarget
from pipetrain.engine.models.weight_units import weight_units
from pipetrain.reporting.seed_statistics import Interval
from pipetrain.reporting.sweep.slowdown import ratio_cell
from pipetrain.runner.terminal.text_table import counted, csv_table, markdown_table
from pipetrain.runner.tracking.files import write_whole
from pipetrain.runner.training.components.data import build_dataset
from pipetrain.runner.training.components.model import build_model

LOSSES, SLOWDOWNS, DELAYS = (f"{NAME}_{what}.svg" for what in ("losses", "slowdowns", "delays"))
_TABLE = "verdicts.csv"
_MADE = "<!-- made by `python -m papers pages map`; edits are lost -->"
_QUESTION = (
    "How deep can a pipeline be before stale weights hurt, and which method helps beyond that depth? Three small "
    "networks were trained in simulated pipelines of D fine-grained stages, by every method, each at learning rates of "
    "its own, in {0} runs of reported seeds. No paper has these results."
)
_FIGURE = (
    "*Final loss over that of D = 1, where nothing is stale. Dark: worse. Framed: shown to be at most 5 % above it. "
    "?: undecided. Others: shown to be more than 5 % above it. Opened by itself, the figure shows intervals as "
    f"tooltips; [{_TABLE}](../../results/{NAME}/{_TABLE}) has all numbers.*"
)
_ABOUT = (
    "**What was trained.** All stages hold weights, and no network has batch norm. The recipe is today's: linear "
    "warm-up, cosine decay to a tenth, gradients clipped at 1. Each method has its own schedule. With one stage, "
    "plain asynchrony (`naive_async`) is plain training. [`pipetrain compare`](../compare.md) tuned the learning rate"
    " of each method at each depth with two seeds, over rates three times apart and as far as that helped; other "
    "seeds are reported. Losses are those of evaluation; the Transformer's includes label smoothing.",
    "**The reference** is plain training, and for another optimizer, where that was measured, its own loss at D = 1. "
    "Two tuning seeds are too few for plain training, so it was measured with the reported seeds at several rates, "
    "and stands for the one with the least mean loss.",
    "**A match.** The ratio of two losses has a 95 % interval, paired by seed "
    "([records.md](../records.md#runs-compared) says how). A match is *supported* if it ends at 1.05 or below, "
    "*refuted* if it begins above 1.05, and undecided otherwise. A diverged run has an infinite loss. Mitigation is "
    "needed from the first refuted depth on that no deeper supported one follows. The intervals cover the variation "
    "over seeds, each by itself: of 40 that are decided, one may be wrong. They leave out the choice of rates. An "
    "error of the reference shifts all cells alike.",
    "**Age of weights.** Under their schedules, `stale` and PipeMare read weights twice as old as the other methods "
    "do, and `timeprest` reads weights D - 1 updates old on every stage; compare these three with each other. "
    "`pipedream_2bw` reads weights one update old at any depth, for which it needs at least D microbatches, so a "
    "minibatch of eight samples ends at D = 8. `hogwild` draws each age at random around PipeMare's, and cannot be "
    "run as a pipeline. Other minibatches are not divided, so `v_timeprest` is plain asynchrony, bit for bit. Hybrids"
    " train without a pipeline for a part of their steps: {0}.",
)
_SLOWDOWN = (
    "The number of steps to the training loss that plain training has after 10 % or 70 % of its steps, over the number "
    "that it takes. All runs are equally long, so slowdowns above about 10 or 1.4 cannot be measured: such a run does "
    "not reach the target (∞)."
)
_DELAY = (
    "All weights are τ updates old in forward and backward (`method=delayed`), so this compares optimizers at equal "
    "delay: final loss over that of the same optimizer at τ = 0."
)
DEPTHS, _MICROBATCHES = (8, 16, 32), 8


def write(results: Path, output: Path) -> Iterator[Path]:
    """Writes the page, its figures, and the table in `results/map/`; yields the files."""
    maps = maps_of(results)
    for name, panels in ((LOSSES, _losses(maps)), (SLOWDOWNS, _slowdowns(maps)), (DELAYS, _delays(maps))):
        if panels and panels[0]:
            heat_map.draw(output / "images" / name, *panels)
            yield output / "images" / name
    if maps:
        write_whole(results / NAME / _TABLE, csv_table(ratio_rows(maps)))
        yield results / NAME / _TABLE
    write_whole(output / f"{NAME}.md", page(maps))
    yield output / f"{NAME}.md"


def page(maps: Sequence[FieldMap]) -> str:
    """Text of the page."""
    return "\n\n".join([*_parts(maps), *costs()]) + "\n"


def _parts(maps: Sequence[FieldMap]) -> Iterator[str]:
    yield "# The map of the field"
    yield _MADE
    yield _QUESTION.format(f"{sum(found.runs for found in maps):,}")
    if not maps:
        yield "Nothing has been measured yet."
        return
    yield "\n".join(f"- {found.title}: {plain_asynchrony(found)}{_deepest(found)}" for found in maps)
    yield svg.shown(LOSSES, "Final loss by method and number of stages")
    yield _FIGURE
    if _slowdowns(maps)[1]:
        yield "## Slowdown"
        yield svg.shown(SLOWDOWNS, "Slowdown by method and number of stages")
        yield _SLOWDOWN
    if _delays(maps)[0]:
        yield "## Equal delay"
        yield svg.shown(DELAYS, "Final loss by optimizer and delay")
        yield _DELAY
    yield "## How it was measured"
    hybrids = {line.method: HYBRIDS[line.method] for found in maps for line in found.hybrids}
    yield from _ABOUT[:-1]
    yield _ABOUT[-1].format(", ".join(f"`{name}` for {share:.0%}" for name, share in hybrids.items()) or "none yet")
    yield from map(_trained, maps)
    yield (
        "`python -m papers reproduce map` runs the missing rounds, the most informative first. `python -m papers pages "
        "map` writes this page from the stored results."
    )


def _losses(maps: Sequence[FieldMap]) -> tuple[list[str], list[Panel]]:
    """The names of all methods, and a panel of each network."""

    def cell(found: FieldMap, line: Line, depth: int) -> Cell | None:
        interval = found.to_reference(line, depth)
        if interval is None:
            return None
        reading = reading_of(interval)
        title = f"{line.name}, D = {depth}: {_interval(interval)}, {reading.value}; loss {line.final_loss(depth)}"
        return Cell(interval.middle, title, reading is Reading.SUPPORTED, reading is Reading.UNDECIDED)

    known = [found for found in maps if found.plain]
    return _grid(known, lambda found: (*found.lines, *found.hybrids), cell, "D")


def _slowdowns(maps: Sequence[FieldMap]) -> tuple[list[str], list[Panel]]:
    """As for losses, to the earliest loss that plain training reaches."""

    def cell(found: FieldMap, line: Line, depth: int) -> Cell | None:
        column = _column(found)
        over = found.plain.measured[column].get(1) if found.plain and column else None
        interval = line.slowdown(column, depth, over) if column and over else None
        if interval is None:
            return None
        return Cell(interval.middle, f"{line.name}, D = {depth}: {ratio_cell(interval)}")

    known = [found for found in maps if _column(found)]
    names, panels = _grid(known, lambda found: found.lines, cell, "D")
    shares = [f"{STEPS_TO_LOSS[_column(found)]:.0%}" for found in known]
    titled = zip(panels, shares, strict=True)
    return names, [each._replace(title=f"{each.title} ({share})", most=10.0) for each, share in titled]


def _column(found: FieldMap) -> str:
    """The earliest loss that plain training reaches; empty if none."""
    reached = [column for column in STEPS_TO_LOSS if found.plain and found.plain.reaches(column)]
    return min(reached, key=lambda column: STEPS_TO_LOSS[column], default="")


def _delays(maps: Sequence[FieldMap]) -> tuple[list[str], list[Panel]]:
    """The optimizers under equal delay."""

    def cell(_found: FieldMap, line: Line, delay: int) -> Cell | None:
        interval = line.to_loss(delay, line.losses.get(0, {}))
        return Cell(interval.middle, f"{line.name}, τ = {delay}: {ratio_cell(interval)}") if interval else None

    return _grid([found for found in maps if found.delayed], lambda found: found.delayed, cell, "τ")


def _grid(
    maps: Sequence[FieldMap],
    lines: Callable[[FieldMap], Sequence[Line]],
    cell: Callable[[FieldMap, Line, int], Cell | None],
    depth: str,
) -> tuple[list[str], list[Panel]]:
    every = {line.name for found in maps for line in lines(found)}
    names = sorted(every, key=lambda name: (name not in (PLAIN, "delayed"), "optimizer" in name, name))
    panels = []
    for found in maps:
        own = {line.name: line for line in lines(found)}
        depths = [each for each in depths_of(list(own.values())) if each > (depth == "D")]
        rows = [
            [cell(found, own[name], each) if name in own and each in own[name].depths else None for each in depths]
            for name in names
        ]
        heads = [f"{depth} = {depths[0]}", *map(str, depths[1:])]
        panels.append(Panel(f"{found.title.split(' on ')[0].replace('`', '')}", heads, rows))
    return [_short(name) for name in names], panels


def _short(name: str) -> str:
    """A line's name without the section of its settings, such as `pipedream muon`."""
    return name.replace("optimizer.", "").replace("optimizer=", "")


def ratio_rows(maps: Sequence[FieldMap]) -> list[Mapping[str, object]]:
    """A row for each method, or optimizer under equal delay, at each depth, and for each rate of plain training."""
    found = []
    for each in maps:
        parts = {"pipeline": each.lines, "hybrid": each.hybrids, "equal delay": each.delayed}
        for kind, lines in parts.items():
            found += [_ratio_row(each, kind, line, depth) for line in lines for depth in line.depths]
        found += [_ratio_row(each, "plain training", line, 1) for line in each.tried.values()]
    return found


def _ratio_row(found: FieldMap, kind: str, line: Line, depth: int) -> Mapping[str, object]:
    delayed = kind == "equal delay"
    own = line.to_loss(depth, line.losses.get(0, {})) if delayed else found.to_reference(line, depth)
    plain = None if delayed else found.to_plain(line, depth)
    judged = own and depth > 1 and not delayed
    return {
        "network": found.network,
        "data": found.dataset,
        "scale": found.target.scale,
        "kind": kind,
        "method": line.name,
        "depth or delay": depth,
        "seeds": len(line.losses[depth]),
        "rate": f"{line.rates[depth]:g}",
        "loss": line.final_loss(depth),
        "over own D = 1": f"{own.middle:.3f}" if own else "",
        "95 %": _interval(own) if own else "",
        "reading": reading_of(own).value if own and judged else "",
        "below": "yes" if own and judged and own.high < 1.0 else "",
        "over plain training, 95 %": _interval(plain) if plain else "",
        **{
            f"slowdown to the loss after {share:.0%}": _slowdown(found, column, line, depth) if plain else ""
            for column, share in STEPS_TO_LOSS.items()
        },
    }


def _slowdown(found: FieldMap, column: str, line: Line, depth: int) -> str:
    if found.plain is None or depth == 1 or not found.plain.reaches(column):
        return ""
    return ratio_cell(line.slowdown(column, depth, found.plain.measured[column][1]))


def _interval(found: Interval) -> str:
    return "diverged" if any(found.infinite) else f"{found.low:.2f} to {found.high:.2f}"


@cache
def weights(target: ReproductionTarget) -> int:
    """Number of weights that a stage of the network can hold, each with its bias."""
    settings = composed([f"experiment={target.experiment}", *target.settings])
    return len(weight_units(build_model(settings, build_dataset(settings.dataset, settings.seed))))


def _trained(found: FieldMap) -> str:
    """The network and the data, every setting that is not the preset's, and the number of runs."""
    target = found.target
    network = preset(target.experiment).summary.partition(":")[0]
    changed = f" Changed for the {target.scale} scale: `{' '.join(target.settings)}`." if target.settings else ""
    seeds = min(len(each) for line in (*found.lines, *found.hybrids, *found.delayed) for each in line.losses.values())
    rest = f"; {counted(found.missing, 'round has', 'rounds have')} not run yet" if found.missing else ""
    return (
        f"**{found.title}**, `experiment={target.experiment}`: {network}.{changed} {weights(target)} of its weights "
        f"can be on a stage of their own. {counted(found.runs, 'run', 'runs')} of reported seeds, at least "
        f"{counted(seeds, 'seed', 'seeds')} each{rest}. If none of {seeds} runs diverged, up to "
        f"{1 - 0.05 ** (1 / seeds):.0%} of such runs may still diverge (with 95 % confidence)."
    )


_MEANINGS = {
    Reading.SUPPORTED: "matches plain training",
    Reading.UNDECIDED: "is undecided",
    Reading.REFUTED: "does not match plain training",
}


def plain_asynchrony(found: FieldMap) -> str:
    """The depths at which plain asynchrony matches plain training, and the depth from which mitigation is needed."""
    if found.plain is None:
        return "plain training has not been measured yet."
    readings = found.readings(found.plain)
    parts = [
        f"{words} at {_listed([depth for depth, each in readings.items() if each is reading])}"
        for reading, words in _MEANINGS.items()
        if reading in readings.values()
    ]
    last = max((depth for depth, each in readings.items() if each is Reading.SUPPORTED), default=1)
    beyond = [depth for depth, each in readings.items() if each is Reading.REFUTED and depth > last]
    needed = f"mitigation is needed for D ≥ {beyond[0]}" if beyond else "no depth is known to need mitigation"
    return f"plain asynchrony {', '.join(parts)}; {needed}." if parts else "plain asynchrony has one stage only so far."


def _deepest(found: FieldMap) -> str:
    """The methods shown to match at the largest depth at which any is."""
    matching = [
        (depth, _short(line.name))
        for line in found.lines
        for depth, each in found.readings(line).items()
        if found.plain and each is Reading.SUPPORTED
    ]
    if not matching:
        return " No method is shown to match at any depth." if found.plain else ""
    deepest = max(depth for depth, _ in matching)
    names = ", ".join(f"`{name}`" for depth, name in matching if depth == deepest)
    return f" The deepest match shown is at D = {deepest}, of {names}."


def _listed(depths: Sequence[int]) -> str:
    return f"D = {', '.join(map(str, depths))}"


def costs() -> Iterable[str]:
    """The section of the page."""
    yield "## Memory and throughput"
    yield (
        "All networks are simulated in one process, so their speed and memory say nothing about a pipeline. These "
        "follow from the schedules. *Copies* are the sets of weights that a stage holds, averaged over all stages; *in "
        "flight* are the minibatches whose activations the first stage holds. A minibatch has one microbatch, and D of "
        "them under PipeDream-2BW, whose first stage holds the activations of one minibatch."
    )
    shown = ("naive_async", "pipedream", "pipedream_2bw", "spectrain", "pipeoptim", "stale", "pipemare",
             "timeprest", "v_timeprest", "i_timeprest")  # fmt: skip
    heads = ("", *(f"copies, D = {depth}" for depth in DEPTHS), *(f"in flight, D = {depth}" for depth in DEPTHS))
    yield "\n".join(markdown_table(heads, map(_cost, shown)))
    gpipe = _shares([utilization_of_gpipe(depth, _MICROBATCHES) for depth in DEPTHS])
    alone = _shares([1 / depth for depth in DEPTHS])
    yield (
        "Throughput: these methods keep every stage busy; the hybrids, which are not listed, do so for a part of their "
        f"steps. With GPipe and {_MICROBATCHES} microbatches, a stage would be busy for {gpipe} of the time, and when "
        f"training one stage at a time for {alone}."
    )


def _cost(method: str) -> tuple[str, ...]:
    form, whole = CLOSED[method], method == "pipedream_2bw"
    copies = [_mean_versions(form, depth, depth if whole else 1) for depth in DEPTHS]
    in_flight = [1 if whole else form.forward(Position(0, depth, 1))[-1] + 1 for depth in DEPTHS]
    return method, *(f"{count:.2f}" for count in copies), *map(str, in_flight)


def _mean_versions(form: ClosedForm, depth: int, count: int) -> float:
    return statistics.fmean(form.versions(Position(r, depth, count)) for r in range(depth))


def _shares(shares: Sequence[float]) -> str:
    *first, last = (f"{share:.0%}" for share in shares)
    return f"{', '.join(first)} and {last}"
