"""The page of the map of the field."""

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache, partial

from papers.closed_forms import CLOSED, ClosedForm, Position, utilization_of_gpipe
from papers.field_map import HYBRIDS, FieldMap, Reading, reading_of
from papers.lines import Line, depths_of, table
from papers.presets import IN_CHECKOUT, composed, preset
from papers.results import STEPS_TO_LOSS
from papers.targets import ReproductionTarget
from pipetrain.engine.models.weight_units import weight_units
from pipetrain.reporting.seed_statistics import Interval, Values
from pipetrain.reporting.sweep.slowdown import ratio_cell
from pipetrain.runner.config.choices import choice_of
from pipetrain.runner.terminal.text_table import counted, markdown_table
from pipetrain.runner.training.components.data import build_dataset
from pipetrain.runner.training.components.model import build_model

_MADE = "<!-- made by `python -m papers pages map`; edits are lost -->"
_ABOUT = (
    "How deep can a pipeline be before stale weights hurt, and which method helps beyond that depth? This page has the "
    "final loss of every method against the number of stages D, in simulated pipelines with fine-grained stages, all "
    "of which hold weights. No network has batch norm. The recipe is today's: linear warm-up, cosine decay to a tenth, "
    "gradients clipped at 1. Each method has its own schedule. With one stage, plain asynchrony (`naive_async`) is "
    "plain training.",
    "[`pipetrain compare`](../compare.md) tuned the learning rate of each method at each depth with two seeds, over "
    "rates three times apart and as far as that helped. All rates were trained for half of the steps, and the better "
    "half of them for all steps. Other seeds are reported. All losses are "
    "evaluation losses, means over seeds ± the standard deviation; the Transformer's includes label smoothing.",
    "**The reference** is plain training. All losses of a table are divided by it, for which two tuning seeds are too "
    "few. It was therefore measured with the reported seeds at several rates, and stands for the one with the least "
    "mean loss. Of several means, the least is a little too low by chance, so a match is rather harder to show.",
    "**A match.** A method matches its reference if its loss is at most 5 % higher. The ratio of the two losses has a "
    "95 % interval, paired by seed ([records.md](../records.md#runs-compared) says how). A match is **supported**, and "
    "the loss bold, if the interval ends at 1.05 or below; refuted if it begins above 1.05; undecided otherwise. A "
    "diverged run has an infinite loss. Mitigation is needed from the first refuted depth on that no deeper supported "
    "one follows. A better optimizer has a lower loss under any delay, so a line with another "
    "optimizer is read against its own loss at D = 1, if that was measured. `below` marks losses significantly lower "
    "than the reference: a method gains nothing from delay, so the rate of the reference may still not be the best.",
    "**The intervals** cover the variation over seeds, each by itself: of 40 that are decided, one may be wrong. They "
    "leave out the choice of rates, for which two seeds stand except at the reference, and which can make a single "
    "loss too high. An error of the reference shifts all cells of its tables alike.",
    "The *slowdown* is the number of steps to the training loss that plain training has after 70 % or 10 % of its "
    "steps, at the rate that was tuned, over the number that the reference takes. All runs are equally long, so "
    "slowdowns above about 1.4 and 10 cannot be measured: such a run does not reach the target, and counts as "
    "infinite.",
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
        (found.title, f"{weights(found.target)}", *(_own_ratio(found, found.plain, depth) for depth in depths))
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
    if len(found.tried) > 1:
        yield "Loss of plain training at each measured rate, divided by that of the reference:"
        yield _reference(found)
    title = found.title.replace("`", "")
    yield f"![Steps to a loss and final loss against the number of stages, {title}](images/{found.figure})"
    depths = depths_of(found.lines)
    yield "Final loss:"
    yield table(found.lines, depths, partial(_cell, found))
    if found.plain is not None and depths[-1] > 1:
        yield "The loss over that of plain training, 95 % interval and reading:"
        yield table(found.lines, depths[1:], partial(_ratio, found))
        if own := [line for line in found.lines if found.has_own_reference(line)]:
            yield "Loss divided by that of the same optimizer at D = 1, with its 95 % interval and reading:"
            yield table(own, depths[1:], partial(_own_ratio, found))
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


def _reference(found: FieldMap) -> str:
    """A row for each rate of plain training."""
    rows = []
    for rate, line in found.tried.items():
        over = None if found.plain is None or rate == found.plain.rates[1] else found.to_plain(line, 1)
        rows.append((f"{rate:g}", line.final_loss(1), _interval(over) if over else "reference"))
    return "\n".join(markdown_table(("rate", "final loss", "over the reference"), rows))


def _hybrids(found: FieldMap) -> Iterator[str]:
    shares = ", ".join(f"`{line.method}` for {HYBRIDS[line.method]:.0%}" for line in found.hybrids)
    yield (
        f"**Hybrids** train without a pipeline, one stage after the other, for a part of their steps: {shares}. One of "
        "D stages is busy in that time. Loss over that of plain training:"
    )
    yield table(found.hybrids, depths_of(found.hybrids), partial(_own_ratio, found))


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
    network = preset(target.experiment).summary.partition(":")[0]
    changed = f" Changed for the {target.scale} scale: `{' '.join(target.settings)}`." if target.settings else ""
    data = ", ".join(f"`{name}`: {choice_of('dataset', name).summary}" for name in found.dataset.split(", "))
    count = f"{weights(target)} of its weights can be on a stage of their own"
    named = f"--config-dir {IN_CHECKOUT} experiment={target.experiment}"
    return f"`{named}`: {network}.{changed} Trained on {data}. {count}."


def _measured(found: FieldMap) -> str:
    rest = f"; {counted(found.missing, 'round has', 'rounds have')} not run yet" if found.missing else ""
    seeds = {len(losses) for line in (*found.lines, *found.hybrids, *found.delayed) for losses in line.losses.values()}
    least = counted(min(seeds), "seed", "seeds")
    return (
        f"**Measured:** {counted(found.runs, 'run', 'runs')} of reported seeds, at least {least} each{rest}. If none "
        f"of {min(seeds)} runs diverged, up to {1 - 0.05 ** (1 / min(seeds)):.0%} of such runs may still diverge (with "
        "95 % confidence)."
    )


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
    last = max((depth for depth, each in readings.items() if each is Reading.SUPPORTED), default=1)
    beyond = [depth for depth, each in readings.items() if each is Reading.REFUTED and depth > last]
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
        shown = {line.name: [at for at, each in found.readings(line).items() if each is reading] for line in others}
        if texts := _by_depth(shown):
            yield f"Methods shown {words} their optimizer without delay, {texts}."
    if texts := _by_depth({line.name: found.below(line) for line in found.lines}):
        yield f"Significantly below their reference, which may not have the best rate, {texts}."


def _by_depth(shown: Mapping[str, Sequence[int]]) -> str:
    """The names at each depth."""
    depths = sorted({depth for each in shown.values() for depth in each})
    names = {depth: [name for name, each in shown.items() if depth in each] for depth in depths}
    return "; ".join(f"at D = {depth}: {', '.join(each)}" for depth, each in names.items())


def _listed(depths: Sequence[int]) -> str:
    return f"D = {', '.join(map(str, depths))}"


def _ratio(found: FieldMap, line: Line, depth: int) -> str:
    """The loss over plain training's, with its reading if that is what the line is read against."""
    if not found.has_own_reference(line):
        return _own_ratio(found, line, depth)
    interval = found.to_plain(line, depth)
    return _interval(interval) if interval else ""


def _own_ratio(found: FieldMap, line: Line, depth: int) -> str:
    """Loss divided by that of the same optimizer without delay, with its reading."""
    interval = found.to_reference(line, depth)
    if interval is None:
        return ""
    reading = reading_of(interval)
    below = ", below" if depth in found.below(line) else ""
    text = f"{_interval(interval)}, {reading.value}{below}"
    return f"**{text}**" if reading is Reading.SUPPORTED else text


def _interval(found: Interval) -> str:
    return "diverged" if any(found.infinite) else f"{found.low:.2f} to {found.high:.2f}"


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
