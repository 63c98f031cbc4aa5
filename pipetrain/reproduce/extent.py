"""How much of a paper's experiments was run, and on what, as the head of its page says it."""

from collections.abc import Iterator, Sequence

from pipetrain.config.choices import choice_of, group_overrides_of
from pipetrain.report.text_table import counted
from pipetrain.reproduce.results import Measured, Results
from pipetrain.reproduce.targets import FULL, presets


def extent(paper: str, results: Results) -> str:
    """Which presets were run, at which scale, on which networks, for how long."""
    total = sum(name.startswith(f"{paper}/") for name in presets())
    full = [each for each in results.values() if each.scale == FULL]
    small = [each for each in results.values() if each.scale != FULL]
    run = f"{len(results)} of {counted(total, 'preset', 'presets')} of this paper were run"
    if full:
        head = f"**{run}, {len(full)} of them at the paper's size.**"
    else:
        head = f"**No experiment was run at the paper's size.** {run}, none at full scale."
    return " ".join([head, *_small(paper, small)])


def _small(paper: str, found: Sequence[Measured]) -> Iterator[str]:
    trained = [each for each in found if each.metric]
    timed = [each for each in found if not each.metric]
    if trained:
        samples = [size for each in trained if (size := _samples(paper, each))]
        sizes = _spread(samples, "samples"), _spread(_means(trained, "epochs"), "epochs")
        yield f"All training is at small scale{''.join(sizes)}: {_on(paper, trained)}."
    if timed:
        yield f"All timing is at small scale{_spread(_means(timed, 'steps'), 'steps')}: {_on(paper, timed)}."


def _means(found: Sequence[Measured], column: str) -> list[float]:
    return [group.means[column] for each in found for group in each.groups if column in group.means]


def _on(paper: str, found: Sequence[Measured]) -> str:
    """The networks, each with its data."""
    places = (f"`{_network(paper, each)}` on `{each.data or _of(paper, each)['dataset']}`" for each in found)
    return ", ".join(dict.fromkeys(places))


def _network(paper: str, measured: Measured) -> str:
    """The model with the sizes that are not its own."""
    if measured.changed("model") or not measured.network:
        return measured.network or str(_of(paper, measured)["model"])
    return f"{_of(paper, measured)['model']} {measured.network}"


def _samples(paper: str, measured: Measured) -> float | None:
    """The training samples: as many as were asked for, or as steps and epochs tell."""
    if limit := measured.changed("dataset.limit"):
        return float(limit)
    own = choice_of("experiment", f"{paper}/{measured.experiment}").content.get("train", {}).get("batch_size")
    batch = measured.changed("train.batch_size") or own
    means = measured.groups[0].means if measured.groups else {}
    if not batch or "steps" not in means or not means.get("epochs"):
        return None
    return round(means["steps"] * int(batch) / means["epochs"], -2)


def _of(paper: str, measured: Measured) -> dict[str, str]:
    """The choices that the preset brings."""
    return dict(group_overrides_of("experiment", f"{paper}/{measured.experiment}"))


def _spread(values: Sequence[float], noun: str) -> str:
    """The least and the largest, behind a comma; nothing where there are none, as of runs that all diverged."""
    if not values:
        return ""
    least, most = min(values), max(values)
    return f", {least:,.0f} {noun}" if round(least) == round(most) else f", {least:,.0f} to {most:,.0f} {noun}"
