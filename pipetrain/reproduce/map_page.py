"""The page of the map of the field in Markdown, and its figure."""

import math
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path

from pipetrain.report.style import BLUE, GRAY, GREEN, INK, ORANGE, RED, figure
from pipetrain.report.sweep.end_labels import label_ends
from pipetrain.report.text_table import counted, markdown_table
from pipetrain.reproduce.field_map import NETWORKS, PLAIN, FieldMap, Loss
from pipetrain.theory.closed_forms import CLOSED, Position

FIGURE = "map.png"
_MADE = "<!-- made by `pipetrain report papers map`; edits are lost -->"
_ABOUT = (
    "The final loss of every method against the number of stages D, simulated with fine-grained stages, each under its "
    "own schedule and with the best learning rate of a small grid, mean ± deviation over seeds. In a pipeline of one "
    "stage, plain asynchrony is plain training. A loss up to 5 % above that of plain training counts as like it, and "
    "is bold. Under their schedules PipeMare, stale weights and Hogwild read weights twice as old as the others do. "
    "`pipetrain reproduce map` runs what is missing, a coarse map of all networks first, and goes on where it was "
    "broken off; `pipetrain report papers map` writes this page from what there is."
)
_DEPTH = 16
_COLORS = (INK, GRAY, BLUE, GREEN, ORANGE, RED)


def map_page(maps: Sequence[FieldMap]) -> str:
    """The whole page; its figure lies in `images/` beside it."""
    blocks = [
        ["# The map of the field"],
        [_MADE],
        [_ABOUT],
        *([] if maps else [["Nothing was measured yet."]]),
        *([[f"![Final loss against depth, a panel for each network](images/{FIGURE})"]] if maps else []),
        *(block for found in maps for block in _network(found)),
        *_costs(),
    ]
    return "\n\n".join("\n".join(block) for block in blocks) + "\n"


def _network(found: FieldMap) -> Iterator[Sequence[str]]:
    yield [f"## {_title(found)}, {found.scale} scale"]
    yield [_measured(found)]
    yield [_reading(found)]
    head = ("", *(f"D = {depth}" for depth in found.depths), "like plain training up to")
    yield markdown_table(head, [_row(found, method) for method in found.methods])
    if any(loss.rates > 1 for loss in found.losses.values()):
        yield ["The learning rates of these losses, each the best of those that were tried:"]
        rows = [(method, *(_rate(found, method, depth) for depth in found.depths)) for method in found.methods]
        yield markdown_table(head[:-1], rows)


def _title(found: FieldMap) -> str:
    return f"{NETWORKS[found.network]} on {found.dataset}"


def _measured(found: FieldMap) -> str:
    """How much of the grid there is."""
    losses = found.losses.values()
    rates = _range([loss.rates for loss in losses], "learning rate", "learning rates")
    seeds = _range([loss.seeds for loss in losses], "seed", "seeds")
    return f"{counted(found.runs, 'run', 'runs')} so far: each loss from {rates}, with {seeds} of the best one."


def _range(counts: Sequence[int], one: str, more: str) -> str:
    least, most = min(counts), max(counts)
    return counted(most, one, more) if least == most else f"{least} to {counted(most, one, more)}"


def _reading(found: FieldMap) -> str:
    if found.plain is None:
        return "Plain training was not measured yet."
    depth = found.falls_behind(PLAIN)
    if depth is None:
        return f"Plain asynchrony is like plain training at all depths measured, up to D = {found.depths[-1]}."
    ends = f"{_shown(found.losses[PLAIN, depth])} against {_shown(found.plain)}"
    deepest = found.depths[-1]
    there = f"; at D = {deepest}: {_like(found, deepest)}" if deepest > depth else ""
    return (
        f"Plain asynchrony falls behind from D = {depth} on ({ends} in plain training). Like plain training at "
        f"D = {depth}: {_like(found, depth)}{there}."
    )


def _like(found: FieldMap, depth: int) -> str:
    return ", ".join(method for method in found.methods if found.like_plain(method, depth)) or "none of those measured"


def _row(found: FieldMap, method: str) -> tuple[str, ...]:
    holds = found.holds_to(method)
    cells = (_cell(found, method, depth) for depth in found.depths)
    return method, *cells, "" if found.plain is None else f"D = {holds}" if holds else "none"


def _cell(found: FieldMap, method: str, depth: int) -> str:
    loss = found.losses.get((method, depth))
    if loss is None:
        return ""
    return f"**{_shown(loss)}**" if found.like_plain(method, depth) else _shown(loss)


def _shown(loss: Loss) -> str:
    if not math.isfinite(loss.mean):
        return "diverged"
    spread = "" if loss.deviation is None else f" ± {loss.deviation:.2g}"
    return f"{loss.mean:.3f}{spread}"


def _rate(found: FieldMap, method: str, depth: int) -> str:
    loss = found.losses.get((method, depth))
    return "" if loss is None or not math.isfinite(loss.mean) else f"{loss.rate:g}"


def _costs() -> Iterator[Sequence[str]]:
    yield ["## Memory and throughput beside it"]
    yield [
        f"From the closed forms, for D = {_DEPTH} and one microbatch a minibatch. All of these keep every stage busy; "
        f"GPipe with 8 microbatches would for {8 / (8 + _DEPTH - 1):.0%} of the time, and training stage by stage for "
        f"{1 / _DEPTH:.0%}."
    ]
    shown = ("naive_async", "pipedream", "pipedream_2bw", "spectrain", "pipeoptim", "stale", "pipemare",
             "timeprest", "v_timeprest", "i_timeprest")  # fmt: skip
    yield markdown_table(
        ("", "copies of the weights, mean of the stages", "minibatches in flight, first stage"), map(_cost, shown)
    )


def _cost(method: str) -> tuple[str, str, str]:
    form, count = CLOSED[method], _DEPTH if method == "pipedream_2bw" else 1
    copies = statistics.fmean(form.versions(Position(r, _DEPTH, count)) for r in range(_DEPTH))
    in_flight = 1 if method == "pipedream_2bw" else form.forward(Position(0, _DEPTH, 1))[-1] + 1
    return method, f"{copies:.2f}", str(in_flight)


def draw(path: Path, maps: Sequence[FieldMap]) -> None:
    """Draws final loss against depth, a panel for each network."""
    with figure(path, (5.2,) * len(maps), 4.0) as panels:
        for panel, found in zip(panels, maps, strict=True):
            ends = []
            for index, method in enumerate(found.methods):
                points = _points(found, method)
                if points:
                    color = _COLORS[index % len(_COLORS)]
                    panel.plot(*zip(*points, strict=True), color=color, marker="o", markersize=3, linewidth=1.2)
                    ends.append((*points[-1], method, color))
            panel.set_xscale("log", base=2)
            panel.set_xticks(found.depths, [str(depth) for depth in found.depths])
            panel.minorticks_off()
            panel.set(title=_title(found), xlabel="stages D", ylabel="final loss, mean over seeds")
            label_ends(panel, ends)


def _points(found: FieldMap, method: str) -> list[tuple[int, float]]:
    """The depths at which a method was measured and did not diverge, with its losses."""
    losses = [(depth, found.losses[method, depth].mean) for depth in found.depths if (method, depth) in found.losses]
    return [(depth, loss) for depth, loss in losses if math.isfinite(loss)]
