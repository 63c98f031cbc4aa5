"""The map of the field: how deep a pipeline can be before stale weights hurt, by method and network."""

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache, partial
from pathlib import Path

from papers.compared import compared_runs
from papers.lines import STAGES, Line, depths_of, table
from papers.results import STEPS_TO_LOSS, Row
from papers.targets import FULL, SMALL, ReproductionTarget
from pipetrain.config.choices import choice_of
from pipetrain.config.composition import composed
from pipetrain.planner.partition.finegrained import weight_units
from pipetrain.report.closed_forms import CLOSED, ClosedForm, Position, utilization_of_gpipe
from pipetrain.report.seed_statistics import Interval, Values, verdict
from pipetrain.report.sweep.slowdown import ratio_cell
from pipetrain.report.text_table import counted, markdown_table
from pipetrain.training.builders.data import build_dataset
from pipetrain.training.builders.model import build_model

NAME = "map"
NETWORKS = {"conv": "Convolution net", "transformer": "Transformer", "gpt": "`gpt`"}
"""The presets, and what they train."""
PLAIN = "naive_async"
"""The method that in a pipeline of one stage is plain training."""
NEAR = 1.05
"""Largest ratio to plain training's loss at which a loss counts as like it."""
HYBRIDS = {"stale_hybrid": 0.5, "pipemare_w": 0.5}
"""Methods that begin or end without a pipeline -> the share of their steps that are synchronous, as the presets are."""
_DELAYED, _DELAY = "delayed", "method.delay"
_NAMED = ("optimizer", "optimizer.lr_by_delay", "optimizer.error_feedback", "optimizer.momentum")
"""Settings of a round that its lines are named for."""


class Reading(Enum):
    """Result of the test that a loss is like plain training's."""

    SUPPORTED = "supported"
    REFUTED = "refuted"
    UNDECIDED = "undecided"


def reading_of(found: Interval) -> Reading:
    """Verdict on a loss, from the interval of its ratio to that of plain training."""
    holds = verdict(found, high=NEAR).holds
    return Reading.UNDECIDED if holds is None else Reading.SUPPORTED if holds else Reading.REFUTED


@dataclass(frozen=True)
class FieldMap:
    """Measurements on one network.

    Attributes:
        target: the preset, at a scale.
        dataset: what it was trained on.
        lines: methods in pipelines, plain asynchrony first.
        hybrids: methods that are synchronous for part of their steps.
        delayed: optimizers under a chosen delay of all weights, by the delay.
        runs: number of reported runs.
        missing: number of rounds that have not run.
    """

    target: ReproductionTarget
    dataset: str
    lines: Sequence[Line]
    hybrids: Sequence[Line]
    delayed: Sequence[Line]
    runs: int
    missing: int

    @property
    def network(self) -> str:
        """The last word of its preset."""
        return self.target.experiment.rpartition("/")[2]

    @property
    def title(self) -> str:
        """Its network and its data."""
        return f"{NETWORKS[self.network]} on {self.dataset}"

    @property
    def figure(self) -> str:
        """The name of its figure, which is in `images/` next to the page."""
        return f"{NAME}_{self.network}.png"

    @property
    def plain(self) -> Line | None:
        """Plain asynchrony; None without plain training, which it is with one stage."""
        return next((line for line in self.lines if line.name == PLAIN and 1 in line.depths), None)

    def to_plain(self, line: Line, depth: int) -> Interval | None:
        """The ratio of the losses of a line to plain training's, paired by seed; None if not measured."""
        return line.to_loss(depth, self.plain.losses[1]) if self.plain else None

    def readings(self, line: Line) -> Mapping[int, Reading]:
        """Depth above 1 -> what its losses say."""
        found = {depth: self.to_plain(line, depth) for depth in line.depths if depth > 1}
        return {depth: reading_of(each) for depth, each in found.items() if each}


def maps_of(results: Path) -> list[FieldMap]:
    """The maps of all networks that were measured, the full scale before the small one."""
    found = []
    for network in NETWORKS:
        for scale in (FULL, SMALL):
            target = ReproductionTarget(f"{NAME}/{network}", scale)
            rounds = list(compared_runs(target, target.results(results)))
            if any(rows for _, rows in rounds):
                by_line: dict[tuple[str, str], list[Row]] = {}
                for this, rows in rounds:
                    more = [f"{name}={value}" for name, value in this.given.items() if name in _NAMED]
                    for row in rows:
                        by_line.setdefault((row["method"], " ".join([row["method"], *more])), []).append(row)
                found.append(_map(target, by_line, sum(not rows for _, rows in rounds)))
                break
    return found


def _map(target: ReproductionTarget, by_line: Mapping[tuple[str, str], Sequence[Row]], missing: int) -> FieldMap:
    """The map of the runs of each (method, line)."""
    groups: dict[str, list[Line]] = {"": [], "hybrid": [], _DELAYED: []}
    for (method, name), rows in sorted(by_line.items(), key=lambda each: (each[0][1] != PLAIN, each[0])):
        kind = _DELAYED if method == _DELAYED else "hybrid" if method in HYBRIDS else ""
        groups[kind].append(Line.of(name, rows, _DELAY if kind == _DELAYED else STAGES, method))
    every = [row for rows in by_line.values() for row in rows]
    dataset = ", ".join(sorted({row["dataset"] for row in every}))
    return FieldMap(target, dataset, groups[""], groups["hybrid"], groups[_DELAYED], len(every), missing)


_MADE = "<!-- made by `python -m papers pages map`; edits are lost -->"
_ABOUT = (
    "How deep can a pipeline be before stale weights hurt, and which method helps beyond that depth? This page has the "
    "final loss of every method against the number of stages D, in simulated pipelines with fine-grained stages, all "
    "of which hold weights. No network has batch norm. The recipe is today's: linear warm-up, cosine decay to a tenth, "
    "gradients clipped at 1. Each method has its own schedule. With one stage, plain asynchrony (`naive_async`) is "
    "plain training.",
    "[`pipetrain compare`](../compare.md) tunes the learning rate of each method at each depth by successive halving "
    "on two seeds, over rates three times apart and as far as that helps. Other seeds are reported. All losses are "
    "evaluation losses, means over seeds ± the standard deviation; the Transformer's includes label smoothing.",
    "A method matches plain training if its loss is at most 5 % higher. The ratio of the two losses has a 95 % "
    "interval, paired by seed ([records.md](../records.md#runs-compared) says how). A match is **supported**, and the "
    "loss bold, if the interval ends at 1.05 or below; refuted if it begins above 1.05; undecided otherwise. A "
    "diverged run has an infinite loss.",
    "The *slowdown* is the number of steps to the training loss that plain training has after 70 % or 10 % of its "
    "steps, over the number that plain training takes. All runs are equally long, so slowdowns above 1.43 and 10 "
    "cannot be measured: such a run does not reach the target, and counts as infinite.",
    "The methods do not all read weights of the same age. Under their schedules, `stale` and PipeMare read weights "
    "twice as old as the other methods do, and `timeprest` reads weights D - 1 updates old on every stage, which on "
    "average are as old; compare these three with each other. `pipedream_2bw` reads weights one update old at "
    "any depth, for which it needs at least D microbatches, so a minibatch of eight samples ends at D = 8. `hogwild` "
    "draws each age at random around PipeMare's; it models asynchrony and cannot be run as a pipeline. Other "
    "minibatches are not divided, so `v_timeprest` is plain asynchrony, bit for bit; only the tables of `gpt` "
    "have both. `delayed` gives all weights the same age, so its table compares optimizers at equal delay.",
    "`python -m papers reproduce map` runs the missing rounds, the most informative first. `python -m "
    "papers pages map` writes this page from the stored results.",
)
DEPTHS, _MICROBATCHES = (8, 16, 32), 8


def page(maps: Sequence[FieldMap]) -> str:
    """Text of the page."""
    parts = ["# The map of the field", _MADE, *_ABOUT]
    if maps:
        parts += [
            "The loss of plain asynchrony over that of plain training, 95 % interval and reading:",
            _overview(maps),
        ]
        parts.append("\n".join(f"- {found.title}: {_plain_asynchrony(found)}" for found in maps))
    else:
        parts.append("Nothing has been measured yet.")
    return "\n\n".join([*parts, *(text for found in maps for text in _network(found)), *costs()]) + "\n"


def _overview(maps: Sequence[FieldMap]) -> str:
    """A row for each network, a column for each depth."""
    depths = [depth for depth in depths_of([found.lines[0] for found in maps if found.plain]) if depth > 1]
    rows = [
        (found.title, f"{weights(found.target)}", *(_ratio(found, found.plain, depth) for depth in depths))
        for found in maps
        if found.plain
    ]
    return "\n".join(markdown_table(("", "weights", *(f"D = {depth}" for depth in depths)), rows))


@cache
def weights(target: ReproductionTarget) -> int:
    """Number of weights that a stage of the network can hold, each with its bias."""
    settings = composed([f"experiment={target.experiment}", *target.settings])
    return len(weight_units(build_model(settings, build_dataset(settings.dataset, settings.seed))))


def _network(found: FieldMap) -> Iterator[str]:
    yield f"## {found.title}, {found.target.scale} scale"
    yield _trained(found)
    yield _measured(found)
    yield "\n".join(f"- {sentence}" for sentence in _sentences(found))
    title = found.title.replace("`", "")
    yield f"![Steps to a loss and final loss against the number of stages, {title}](images/{found.figure})"
    depths = depths_of(found.lines)
    yield "Final loss:"
    yield table(found.lines, depths, partial(_cell, found))
    if found.plain is not None and depths[-1] > 1:
        yield "The loss over that of plain training, 95 % interval and reading:"
        yield table(found.lines, depths[1:], partial(_ratio, found))
        for column, share in STEPS_TO_LOSS.items():
            if not found.plain.reaches(column):
                yield f"After {share:.0%} of its steps plain training has no lower loss than at its start: no slowdown."
                continue
            yield f"Slowdown to the training loss of plain training after {share:.0%} of its steps:"
            yield table(found.lines, depths[1:], partial(_slowdown, column, found.plain.measured[column][1]))
    yield "The learning rate, as tuned:"
    yield table(found.lines, depths, lambda line, depth: f"{line.rates[depth]:g}")
    if found.hybrids:
        yield from _hybrids(found)
    if found.delayed:
        yield from _delayed(found)


def _hybrids(found: FieldMap) -> Iterator[str]:
    shares = ", ".join(f"`{line.method}` for {HYBRIDS[line.method]:.0%}" for line in found.hybrids)
    yield (
        f"**Hybrids** train without a pipeline, one stage after the other, for a part of their steps: {shares}. One of "
        "D stages is busy in that time. Loss over that of plain training:"
    )
    yield table(found.hybrids, depths_of(found.hybrids), partial(_ratio, found))


def _delayed(found: FieldMap) -> Iterator[str]:
    yield (
        "**Equal delay**: all weights are τ updates old in forward and backward (`method=delayed`). Final loss, then "
        "its ratio to the loss of the same optimizer at τ = 0:"
    )
    delays = depths_of(found.delayed)
    yield table(found.delayed, delays, Line.final_loss, "τ")
    yield table(found.delayed, [delay for delay in delays if delay], _over_no_delay, "τ")


def _over_no_delay(line: Line, delay: int) -> str:
    interval = line.to_loss(delay, line.losses.get(0, {}))
    return ratio_cell(interval) if interval else ""


def _trained(found: FieldMap) -> str:
    """The network and the data, and every setting that is not the preset's."""
    target = found.target
    preset = choice_of("experiment", target.experiment).summary.partition(":")[0]
    changed = f" Changed for the {target.scale} scale: `{' '.join(target.settings)}`." if target.settings else ""
    data = ", ".join(f"`{name}`: {choice_of('dataset', name).summary}" for name in found.dataset.split(", "))
    count = f"{weights(target)} of its weights can be on a stage of their own"
    return f"`experiment={target.experiment}`: {preset}.{changed} Trained on {data}. {count}."


def _measured(found: FieldMap) -> str:
    rest = f"; {counted(found.missing, 'round has', 'rounds have')} not run yet" if found.missing else ""
    seeds = {len(losses) for line in (*found.lines, *found.hybrids, *found.delayed) for losses in line.losses.values()}
    least = counted(min(seeds), "seed", "seeds")
    return f"**Measured:** {counted(found.runs, 'run', 'runs')} of reported seeds, at least {least} each{rest}."


_MEANINGS = {
    Reading.SUPPORTED: "matches plain training",
    Reading.UNDECIDED: "is undecided",
    Reading.REFUTED: "does not match plain training",
}


def _plain_asynchrony(found: FieldMap) -> str:
    """The depths at which plain asynchrony matches plain training, and the depth from which mitigation is needed."""
    if found.plain is None:
        return "plain training has not been measured yet."
    readings = found.readings(found.plain)
    parts = [
        f"{words} at {_listed([depth for depth, each in readings.items() if each is reading])}"
        for reading, words in _MEANINGS.items()
        if reading in readings.values()
    ]
    last = max((depth for depth, each in readings.items() if each is not Reading.REFUTED), default=1)
    beyond = [depth for depth in readings if depth > last]
    needed = f"mitigation is needed for D ≥ {beyond[0]}" if beyond else "no depth is known to need mitigation"
    return f"plain asynchrony {', '.join(parts)}; {needed}." if parts else "plain asynchrony has one stage only so far."


def _sentences(found: FieldMap) -> Iterator[str]:
    """Conclusions from the intervals: depths that need mitigation, methods shown to provide it and shown not to."""
    plain = _plain_asynchrony(found)
    yield f"{plain[0].upper()}{plain[1:]}"
    if found.plain is None:
        return
    others = [line for line in found.lines if line is not found.plain]
    for reading, words in ((Reading.SUPPORTED, "to match"), (Reading.REFUTED, "not to match")):
        shown = {
            depth: [line.name for line in others if found.readings(line).get(depth) is reading]
            for depth in depths_of(others)
        }
        if texts := [f"at D = {depth}: {', '.join(names)}" for depth, names in shown.items() if names]:
            yield f"Methods shown {words} plain training, {'; '.join(texts)}."


def _listed(depths: Sequence[int]) -> str:
    return f"D = {', '.join(map(str, depths))}"


def _ratio(found: FieldMap, line: Line, depth: int) -> str:
    interval = found.to_plain(line, depth)
    if interval is None:
        return ""
    reading = reading_of(interval)
    if any(interval.infinite):
        return f"diverged, {reading.value}"
    text = f"{interval.low:.2f} to {interval.high:.2f}, {reading.value}"
    return f"**{text}**" if reading is Reading.SUPPORTED else text


def _cell(found: FieldMap, line: Line, depth: int) -> str:
    loss = line.final_loss(depth)
    return f"**{loss}**" if found.readings(line).get(depth) is Reading.SUPPORTED else loss


def _slowdown(column: str, over: Values, line: Line, depth: int) -> str:
    return ratio_cell(line.slowdown(column, depth, over))


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
