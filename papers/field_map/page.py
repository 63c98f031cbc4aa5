"""The page of the map of the field in Markdown."""

import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache

from papers.field_map.losses import NAME, NETWORKS, PLAIN, FieldMap, Loss, Reading, reading_of
from papers.targets import ReproductionTarget
from pipetrain.config.choices import choice_of
from pipetrain.config.composition import combinations, composed
from pipetrain.planner.partition.finegrained import weight_units
from pipetrain.report.closed_forms import CLOSED, ClosedForm, Position, utilization_of_gpipe
from pipetrain.report.text_table import counted, markdown_table
from pipetrain.training.builders.data import build_dataset
from pipetrain.training.builders.model import build_model

DEPTHS, _MICROBATCHES = (8, 32, 107), 8


def costs() -> Iterable[Sequence[str]]:
    """The section of the page."""
    yield ["## Memory and throughput"]
    yield [
        "All networks are simulated in one process, so their speed and memory say nothing about a pipeline. These "
        "follow from the schedules. *Copies* are the sets of weights that a stage holds, averaged over all stages; *in "
        "flight* are the minibatches whose activations the first stage holds. A minibatch has one microbatch, and D of "
        "them under PipeDream-2BW, whose first stage holds the activations of one minibatch."
    ]
    shown = ("naive_async", "pipedream", "pipedream_2bw", "spectrain", "pipeoptim", "stale", "pipemare",
             "timeprest", "v_timeprest", "i_timeprest")  # fmt: skip
    heads = ("", *(f"copies, D = {depth}" for depth in DEPTHS), *(f"in flight, D = {depth}" for depth in DEPTHS))
    yield markdown_table(heads, map(_cost, shown))
    gpipe, alone = ([share(depth) for depth in DEPTHS] for share in (_busy_gpipe, _busy_alone))
    yield [
        "Throughput: these methods keep every stage busy; `stale_hybrid` and `pipemare_w`, which are not listed, do so "
        f"in one of two epochs. With GPipe and {_MICROBATCHES} microbatches, a stage would be busy for "
        f"{_shares(gpipe)} of the time, and when training one stage at a time for {_shares(alone)}."
    ]


def _cost(method: str) -> tuple[str, ...]:
    form, whole = CLOSED[method], method == "pipedream_2bw"
    copies = [_mean_versions(form, depth, depth if whole else 1) for depth in DEPTHS]
    in_flight = [1 if whole else form.forward(Position(0, depth, 1))[-1] + 1 for depth in DEPTHS]
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


_MADE = "<!-- made by `python -m papers pages map`; edits are lost -->"
_ABOUT = (
    "How deep can a pipeline be before stale weights hurt, and which method helps beyond that depth? This page plots "
    "the final loss of every method against the number of stages D, in simulated pipelines with fine-grained stages. "
    "Each method uses its own schedule, and the learning rate of a small grid that gives the lowest loss at that depth "
    "with the first seed. With one stage, plain asynchrony (`naive_async`) is plain training. All losses are "
    "evaluation losses; the Transformer's includes label smoothing. They are medians over seeds, because single "
    "evaluations of the convolutional network are outliers at high rates, ± the standard deviation.",
    "A method matches plain training if its loss is at most 5 % higher. A few seeds cannot always decide that, so the "
    "ratio of the two losses has a 95 % interval: from the lower to the higher end of two intervals, the bootstrap of "
    "medians over all resamples, which covers too little with three seeds, and Welch's t interval of the logarithms. A "
    "match is **supported**, and the loss bold, if it ends at 1.05 or below; refuted if it begins above 1.05; "
    "undecided otherwise. A diverged run has an infinite loss.",
    "A stage holds one weight with its bias, several, or none; the column `weights` counts the network's weights. If "
    "there are more stages than weights, the stages without weights only add delay.",
    "`stale_hybrid` and `pipemare_w` train one of their two epochs without a pipeline. With one microbatch, one of D "
    "stages is busy in that epoch, so at D = 107 such a run would take {0:.0f} times as long as a run that keeps all "
    "stages busy. This contributes to their results where they come closest to plain training.",
    "The methods do not all read weights of the same age. Under their schedules, `stale` and PipeMare read weights "
    "twice as old as the other methods do, so compare these two with each other. `pipedream_2bw` reads weights one "
    "update old at any depth, for which it needs at least D microbatches; at D = 8 a microbatch has one sample, which "
    "is all that a batch norm sees. `hogwild` draws each age at random around PipeMare's; it models asynchrony and "
    "cannot be run as a pipeline.",
    "`python -m papers reproduce map` runs what is missing, a coarse map of all networks first, and continues where it "
    "was interrupted. `python -m papers pages map` writes this page from the stored results.",
)
Cell = Callable[[FieldMap, str, int], str]


def figure_of(found: FieldMap) -> str:
    """The name of a network's figure, which is in `images/` next to the page."""
    return f"{NAME}_{found.network}.png"


def map_page(maps: Sequence[FieldMap]) -> str:
    """Text of the map's page."""
    blocks = [
        ["# The map of the field"],
        [_MADE],
        *([paragraph.format((1 + DEPTHS[-1]) / 2)] for paragraph in _ABOUT),
        *_head(maps),
        *(block for found in maps for block in _network(found)),
        *costs(),
    ]
    return "\n\n".join("\n".join(block) for block in blocks) + "\n"


def _head(maps: Sequence[FieldMap]) -> Iterator[Sequence[str]]:
    """Results on plain asynchrony, by network."""
    if not maps:
        yield ["Nothing has been measured yet."]
        return
    yield ["The loss of plain asynchrony over that of plain training, 95 % interval and reading:"]
    depths = sorted({depth for found in maps for depth in found.depths if depth > 1})
    yield markdown_table(
        ["", "weights", *(f"D = {depth}" for depth in depths)],
        [[_title(found), f"{weights(found)}", *(_ratio(found, PLAIN, depth) for depth in depths)] for found in maps],
    )
    yield [f"- {_title(found)}: {_plain_asynchrony(found)}" for found in maps]


@cache
def _weights(network: str, scale: str) -> int:
    settings = composed(
        [f"experiment={NAME}/{network}", *next(combinations(ReproductionTarget(f"{NAME}/{network}", scale).settings))]
    )
    dataset = build_dataset(settings.dataset)
    return len(weight_units(build_model(settings, dataset)))


def weights(found: FieldMap) -> int:
    """Number of weights that a stage of the network can hold, each with its bias."""
    return _weights(found.network, found.scale)


def _title(found: FieldMap) -> str:
    return f"{NETWORKS[found.network]} on {found.dataset}"


def _network(found: FieldMap) -> Iterator[Sequence[str]]:
    title = _title(found)
    yield [f"## {title}, {found.scale} scale"]
    yield [_trained(found)]
    yield [_measured(found)]
    yield [_reading(found)]
    yield [f"![Final loss against the number of stages, {title.replace('`', '')}](images/{figure_of(found)})"]
    yield _table(found, _cell, found.depths)
    if found.plain is not None and found.depths[-1] > 1:
        yield ["The loss over that of plain training, 95 % interval and reading:"]
        yield _table(found, _ratio, [depth for depth in found.depths if depth > 1])
    if any(loss.rates > 1 for loss in found.losses.values()):
        yield ["The learning rate of each loss, the best of the rates tried:"]
        yield _table(found, _rate, found.depths)


def _table(found: FieldMap, cell: Cell, depths: Sequence[int]) -> list[str]:
    """A row for each method, a column for each depth."""
    heads = ["", *(f"D = {depth}" for depth in depths)]
    return markdown_table(heads, [[name, *(cell(found, name, at) for at in depths)] for name in found.methods])


def _trained(found: FieldMap) -> str:
    """The network and the data, and every setting that is not the preset's."""
    target = ReproductionTarget(f"{NAME}/{found.network}", found.scale)
    preset = choice_of("experiment", target.experiment).summary.partition(":")[0]
    changed = f" Changed for the {found.scale} scale: `{' '.join(target.settings)}`." if target.settings else ""
    data = ", ".join(f"`{name}`: {choice_of('dataset', name).summary}" for name in found.dataset.split(", "))
    return f"`experiment={target.experiment}`: {preset}.{changed} Trained on {data}."


def _measured(found: FieldMap) -> str:
    """Measured part of the grid, and what is still missing."""
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
        text += " Another rate may let a method go deeper."
    if min(seeds) < 2:
        text += " One seed does not show how far losses scatter; a loss that falls again with depth is partly chance."
    return text


def _missing(found: FieldMap) -> str:
    """Depths, learning rates, seeds and methods of the grid that no run has."""
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


def _plain_asynchrony(found: FieldMap) -> str:
    """The depths at which plain asynchrony matches plain training, and the depth from which mitigation is needed."""
    if found.plain is None:
        return "plain training has not been measured yet."
    depths = {reading: found.depths_that(PLAIN, reading) for reading in Reading}
    if not any(depths.values()):
        return "plain asynchrony was measured with one stage only."
    parts = [
        f"{words} at {_listed(depths[reading])}"
        for reading, words in {
            Reading.SUPPORTED: "matches plain training",
            Reading.UNDECIDED: "is undecided",
            Reading.REFUTED: "does not match plain training",
        }.items()
        if depths[reading]
    ]
    last = max((*depths[Reading.SUPPORTED], *depths[Reading.UNDECIDED]), default=1)
    beyond = [depth for depth in depths[Reading.REFUTED] if depth > last]
    needed = f"mitigation is needed for D ≥ {beyond[0]}" if beyond else "no depth is known to need mitigation"
    return f"plain asynchrony {', '.join(parts)}; {needed}."


def _reading(found: FieldMap) -> str:
    """Conclusions from the losses: depths that need mitigation, methods shown to provide it, and sources of bias."""
    plain = _plain_asynchrony(found)
    text = f"**{plain[0].upper()}{plain[1:]}**"
    if found.plain is None:
        return text
    text += "".join(f" {sentence}" for sentence in _shown_likes(found))
    if found.plain.rates > 1 and found.plain.rate == max(found.measured.rates):
        text += " The best rate of plain training is the largest of the grid, so a larger one may be better still."
    if (gain := found.first_seed_gain) is not None:
        than = "below" if gain > 0 else "above"
        text += (
            f" The seed that selects the rates is included: its losses are on average {abs(gain):.1%} {than} those of "
            "the other seeds."
        )
    return text


def _shown_likes(found: FieldMap) -> Iterator[str]:
    """Methods shown to match plain training, by depth, and the depths at which none does."""
    likes = {
        depth: {method: reading_of(each) for method in found.methods if (each := found.to_plain(method, depth))}
        for depth in found.depths
        if depth > 1
    }
    names = {
        depth: [method for method, reading in readings.items() if reading is Reading.SUPPORTED]
        for depth, readings in likes.items()
    }
    supported = [f"at D = {depth}: {', '.join(methods)}" for depth, methods in names.items() if methods]
    if supported:
        yield f"Methods shown to match plain training: {'; '.join(supported)}."
    if likes and (none := [depth for depth, methods in names.items() if not methods]):
        yield f"No method is shown to match plain training at {_listed(none)}."
    refuted = [depth for depth, readings in likes.items() if set(readings.values()) == {Reading.REFUTED}]
    if refuted:
        yield f"All methods are shown not to match it at {_listed(refuted)}."


def _listed(depths: Sequence[int]) -> str:
    return f"D = {', '.join(map(str, depths))}"


def _ratio(found: FieldMap, method: str, depth: int) -> str:
    if (ratio := found.to_plain(method, depth)) is None:
        return ""
    reading = reading_of(ratio)
    if any(ratio.infinite):
        return f"diverged, {reading.value}"
    text = f"{ratio.low:.2f} to {ratio.high:.2f}, {reading.value}"
    return f"**{text}**" if reading is Reading.SUPPORTED else text


def _cell(found: FieldMap, method: str, depth: int) -> str:
    loss = found.losses.get((method, depth))
    if loss is None:
        return ""
    ratio = found.to_plain(method, depth)
    supported = depth > 1 and ratio is not None and reading_of(ratio) is Reading.SUPPORTED
    return f"**{_shown(loss)}**" if supported else _shown(loss)


def _shown(loss: Loss) -> str:
    if not math.isfinite(loss.median):
        return "diverged"
    spread = "" if loss.deviation is None else f" ± {loss.deviation:.2g}"
    return f"{loss.median:.3f}{spread}" if loss.median < 100 else f"{loss.median:.0f}{spread}"


def _rate(found: FieldMap, method: str, depth: int) -> str:
    loss = found.losses.get((method, depth))
    return "" if loss is None or not math.isfinite(loss.median) else f"{loss.rate:g}"
