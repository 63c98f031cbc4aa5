"""The page of the map of the field in Markdown."""

import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence

from pipetrain.config.choices import choice_of
from pipetrain.report.text_table import counted, markdown_table
from pipetrain.reproduce.field_map import NAME, NETWORKS, PLAIN, FieldMap, Loss
from pipetrain.reproduce.targets import Target
from pipetrain.theory.closed_forms import CLOSED, ClosedForm, Position, utilization_of_gpipe

_MADE = "<!-- made by `pipetrain report papers map`; edits are lost -->"
_ABOUT = (
    "How deep can a pipeline be before its stale weights hurt, and which method helps from there on? This page has the "
    "final loss of every method against the number of stages D, in simulated pipelines with fine-grained stages. Each "
    "method has its own schedule, and the learning rate of a small grid that suits it best at that depth, by the first "
    "seed. In a pipeline of one stage, plain asynchrony (`naive_async`) is plain training. A loss up to 5 % above that "
    "of plain training counts as like it, and is bold. Losses are those of evaluation, the Transformer's with its "
    "label smoothing; medians over seeds, as single evaluations of the convolution net are far out of line at high "
    "rates, and ± their deviation.",
    "The methods do not all read weights of the same age. Under their schedules, those of `stale` and of PipeMare are "
    "twice as old as those of the others, so these are best compared with each other. Those of `pipedream_2bw` are one "
    "update old at any depth, for which it needs D microbatches or more; those of D = 8 have one sample each, which is "
    "all that a batch norm sees. `hogwild` draws each age at random, with PipeMare's as the mean; it is a model of "
    "asynchrony, and no pipeline that could be run.",
    "`pipetrain reproduce map` runs what is missing, a coarse map of all networks first, and goes on where it was "
    "broken off. `pipetrain report papers map` writes this page from what there is.",
)
_DEPTHS, _MICROBATCHES = (8, 32, 107), 8
Cell = Callable[[FieldMap, str, int], str]


def figure_of(found: FieldMap) -> str:
    """The name of a network's figure, which lies in `images/` beside the page."""
    return f"{NAME}_{found.network}.png"


def map_page(maps: Sequence[FieldMap]) -> str:
    """The whole page."""
    blocks = [
        ["# The map of the field"],
        [_MADE],
        *([paragraph] for paragraph in _ABOUT),
        *([] if maps else [["Nothing was measured yet."]]),
        *(
            [["What the runs below say so far:"], [f"- {_title(found)}: {_cure(found)}" for found in maps]]
            if maps
            else []
        ),
        *(block for found in maps for block in _network(found)),
        *_costs(),
    ]
    return "\n\n".join("\n".join(block) for block in blocks) + "\n"


def _title(found: FieldMap) -> str:
    return f"{NETWORKS[found.network]} on {found.dataset}"


def _network(found: FieldMap) -> Iterator[Sequence[str]]:
    title = _title(found)
    yield [f"## {title}, {found.scale} scale"]
    yield [_trained(found)]
    yield [_measured(found)]
    yield [_reading(found)]
    yield [f"![Final loss against the number of stages, {title.replace('`', '')}](images/{figure_of(found)})"]
    yield _losses(found)
    if any(loss.rates > 1 for loss in found.losses.values()):
        yield ["The learning rates of these losses, each the best of those that were tried:"]
        yield _table(found, _rate)


def _table(found: FieldMap, cell: Cell) -> list[str]:
    """A row for each method, a column for each depth."""
    heads = ["", *(f"D = {depth}" for depth in found.depths)]
    return markdown_table(heads, [[name, *(cell(found, name, at) for at in found.depths)] for name in found.methods])


def _losses(found: FieldMap) -> list[str]:
    """The losses, and behind them how far each method is like plain training."""
    heads = ["", *(f"D = {depth}" for depth in found.depths), "like plain training"]
    rows = [
        [name, *(_cell(found, name, depth) for depth in found.depths), _held(found, name)] for name in found.methods
    ]
    return markdown_table(heads, rows)


def _trained(found: FieldMap) -> str:
    """The network and the data, and every setting that is not the preset's."""
    target = Target(f"{NAME}/{found.network}", found.scale)
    preset = choice_of("experiment", target.experiment).summary.partition(":")[0]
    changed = f" Changed for the {found.scale} scale: `{' '.join(target.settings)}`." if target.settings else ""
    data = ", ".join(f"`{name}`: {choice_of('dataset', name).summary}" for name in found.dataset.split(", "))
    return f"`experiment={target.experiment}`: {preset}.{changed} Trained on {data}."


def _measured(found: FieldMap) -> str:
    """How much of the grid there is, and what that leaves open."""
    losses = found.losses.values()
    rates, seeds = [loss.rates for loss in losses], [loss.seeds for loss in losses]
    there, runs = found.measured.runs, counted(found.planned.runs, "run", "runs")
    parts = [f"all {runs}" if there >= found.planned.runs else f"{there:,} of {runs} so far"]
    if missing := _missing(found):
        parts.append(f"not measured yet: {missing}")
    tried, repeated = _range(rates, "learning rate", "learning rates"), _range(seeds, "seed", "seeds")
    parts.append(f"each loss: {'the best of ' if max(rates) > 1 else ''}{tried}, {repeated}")
    text = f"**Measured:** {'; '.join(parts)}."
    if min(rates) < len(found.planned.rates):
        text += " Another rate may carry a method deeper."
    if min(seeds) < 2:
        text += (
            " One seed does not tell how far losses scatter; where one falls again with the depth, chance had a part."
        )
    return text


def _missing(found: FieldMap) -> str:
    """What of the grid no run has."""
    grid, there = found.planned, found.measured
    parts = [
        _named("D =", sorted(grid.depths - there.depths)),
        _named("learning rate", sorted(grid.rates - there.rates)),
        _named("seed", sorted(grid.seeds - there.seeds)),
        ", ".join(sorted(grid.methods - there.methods)),
    ]
    return "; ".join(filter(None, parts))


def _named(noun: str, values: Sequence[float]) -> str:
    return f"{noun} {', '.join(f'{value:g}' for value in values)}" if values else ""


def _range(counts: Sequence[int], one: str, more: str) -> str:
    least, most = min(counts), max(counts)
    return counted(most, one, more) if least == most else f"{least} to {counted(most, one, more)}"


def _cure(found: FieldMap) -> str:
    """From which depth on a cure is needed."""
    behind, held = found.falls_behind(PLAIN), found.holds_to(PLAIN)
    if found.plain is None or held is None:
        return "Plain training was not measured yet, so nothing can be said of a cure."
    if behind is None:
        deepest = f"No cure is needed up to D = {held}, the deepest measured: plain asynchrony is like plain training."
        return (
            deepest
            if held > 1
            else "Plain asynchrony was measured in one stage only, so nothing can be said of a cure."
        )
    if found.next_planned(held) == behind:
        return f"A cure is needed from D = {behind} on."
    return f"A cure is needed from somewhere between D = {held} and D = {behind} on."


def _reading(found: FieldMap) -> str:
    """What follows from the losses: where a cure is needed, and which methods are one."""
    behind, held = found.falls_behind(PLAIN), found.holds_to(PLAIN)
    if found.plain is None or behind is None or held is None:
        return _cure(found)
    ends = f"{_shown(found.losses[PLAIN, behind])} and {_shown(found.plain)}"
    like = (
        f"like plain training up to D = {held}{_but(found, PLAIN)}, and no longer"
        if held > 1
        else "not like plain training"
    )
    at = f"Plain asynchrony is {like} at D = {behind}, where they end at {ends}."
    return f"**{_cure(found)}** {at} {_cures(found, behind)}"


def _cures(found: FieldMap, behind: int) -> str:
    depths = [depth for depth in found.depths if depth >= behind]
    return "Like plain training " + "; ".join(f"at D = {depth}: {_like(found, depth)}" for depth in depths) + "."


def _like(found: FieldMap, depth: int) -> str:
    """The methods that are like plain training at a depth, or the one that comes nearest."""
    names = [method for method in found.methods if found.like_plain(method, depth)]
    if names:
        return ", ".join(names)
    best = found.best(depth)
    return f"none; {best} comes nearest, {_shown(found.losses[best, depth])}" if best else "none, all diverged"


def _held(found: FieldMap, method: str) -> str:
    """How far a method is like plain training, and the depth at which it is not any more."""
    if found.plain is None:
        return ""
    held, behind = found.holds_to(method), found.falls_behind(method)
    if held is None:
        return "nowhere"
    return f"up to D = {held}{_but(found, method)}" + (f", not at {behind}" if behind else "")


def _but(found: FieldMap, method: str) -> str:
    """The depths in between at which a method is not like plain training."""
    gaps = found.gaps(method)
    return f" (but for {', '.join(map(str, gaps))})" if gaps else ""


def _cell(found: FieldMap, method: str, depth: int) -> str:
    loss = found.losses.get((method, depth))
    if loss is None:
        return ""
    return f"**{_shown(loss)}**" if found.like_plain(method, depth) else _shown(loss)


def _shown(loss: Loss) -> str:
    if not math.isfinite(loss.median):
        return "diverged"
    spread = "" if loss.deviation is None else f" ± {loss.deviation:.2g}"
    return f"{loss.median:.3f}{spread}" if loss.median < 100 else f"{loss.median:.0f}{spread}"


def _rate(found: FieldMap, method: str, depth: int) -> str:
    loss = found.losses.get((method, depth))
    return "" if loss is None or not math.isfinite(loss.median) else f"{loss.rate:g}"


def _costs() -> Iterable[Sequence[str]]:
    yield ["## What memory and throughput come to"]
    yield [
        "All networks are simulated in one process, of which neither speed nor memory is that of a pipeline. What a "
        "pipeline has follows from the schedules: the weights below, in copies, the mean of all stages, and the "
        "minibatches whose activations its first stage holds. A minibatch has one microbatch; under PipeDream-2BW it "
        "has D, and its first stage holds those of one minibatch."
    ]
    shown = ("naive_async", "pipedream", "pipedream_2bw", "spectrain", "pipeoptim", "stale", "pipemare",
             "timeprest", "v_timeprest", "i_timeprest")  # fmt: skip
    heads = ("", *(f"copies, D = {depth}" for depth in _DEPTHS), *(f"in flight, D = {depth}" for depth in _DEPTHS))
    yield markdown_table(heads, map(_cost, shown))
    gpipe, alone = ([share(depth) for depth in _DEPTHS] for share in (_busy_gpipe, _busy_alone))
    yield [
        f"Throughput: all of these keep every stage busy. GPipe with {_MICROBATCHES} microbatches would for "
        f"{_shares(gpipe)} of the time, and training stage by stage for {_shares(alone)}."
    ]


def _cost(method: str) -> tuple[str, ...]:
    form, whole = CLOSED[method], method == "pipedream_2bw"
    copies = [_mean_versions(form, depth, depth if whole else 1) for depth in _DEPTHS]
    in_flight = [1 if whole else form.forward(Position(0, depth, 1))[-1] + 1 for depth in _DEPTHS]
    return method, *(f"{count:.2f}" for count in copies), *map(str, in_flight)


def _mean_versions(form: ClosedForm, depth: int, count: int) -> float:
    return statistics.fmean(form.versions(Position(r, depth, count)) for r in range(depth))


def _busy_gpipe(depth: int) -> float:
    return utilization_of_gpipe(depth, _MICROBATCHES)


def _busy_alone(depth: int) -> float:
    return 1 / depth


def _shares(shares: Sequence[float]) -> str:
    *first, last = (f"{share:.0%}" for share in shares)
    return f"{', '.join(first)} and {last}"
