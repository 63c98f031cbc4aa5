"""The tables of predicted pipelines."""

from collections.abc import Iterator, Sequence

from pipetrain.planner.costs.prediction import PredictedStage, Prediction
from pipetrain.report.prediction.cases import Case, differing
from pipetrain.report.text_table import Row, both_ends, rate_of, shortened, size_of, text_table

_LONGEST = 30
"""Characters of a layer's name."""


def comparison(cases: Sequence[Case]) -> Iterator[str]:
    """A row for each case, the fastest marked, and below them the notes of all.

    Columns in which all agree and one would do are left in a line above.
    """
    names = differing(cases)
    common = [f"{name} = {value}" for name, value in cases[0].chosen.items() if name not in names]
    if common:
        yield ", ".join(common)
    fastest = min(case.prediction.time_per_minibatch_s for case in cases)
    rows = [
        [
            *(case.chosen.get(name, "-") for name in names),
            *_cells(case.prediction),
            "<- fastest" if len(cases) > 1 and case.prediction.time_per_minibatch_s == fastest else "",
        ]
        for case in cases
    ]
    heads = [*names, "ms per minibatch", "samples/s", "idle", "sent per " + _per(cases), "memory", "bound by", ""]
    yield from text_table(heads, rows, "<" * len(names) + ">>>>><<")
    yield from dict.fromkeys(note for case in cases for note in case.notes)


def _per(cases: Sequence[Case]) -> str:
    return "sample" if all(case.prediction.batch_size for case in cases) else "minibatch"


def _cells(prediction: Prediction) -> list[str]:
    rate, samples = prediction.samples_per_s, prediction.batch_size or 1
    return [
        milliseconds(prediction.time_per_minibatch_s),
        "-" if rate is None else rate_of(rate),
        f"{prediction.idle:.1%}",
        size_of(prediction.sent_bytes / samples),
        _largest(prediction),
        prediction.bound,
    ]


def _largest(prediction: Prediction) -> str:
    """The memory of the device that needs most."""
    known = [stage.memory_bytes for stage in prediction.stages if stage.memory_bytes is not None]
    return size_of(max(known)) if known else "-"


def stage_table(prediction: Prediction) -> Iterator[str]:
    """A row for each stage; of many the first and last."""
    times = _times(prediction.stages)
    heads = ("stage", "layers", "", "replicas", *times, "idle", "memory", "link behind it")
    links = [*(f"{share:.1%} busy" for share in prediction.link_busy), ""]
    rows: list[Row] = [
        (str(r), str(stage.num_layers), _span(stage), str(stage.replicas), *took, *_rest(stage), link)
        for r, (stage, link, *took) in enumerate(zip(prediction.stages, links, *times.values(), strict=True))
    ]
    yield from text_table(heads, both_ends(rows, "stages"), ">><>" + ">" * len(times) + ">>>")
    if hosts := prediction.cores_busy:
        yield f"cores: {max(hosts):.1%} busy" + (f" on the busiest of {len(hosts)} machines" if len(hosts) > 1 else "")


def _span(stage: PredictedStage) -> str:
    first, last = (shortened(label, _LONGEST) for label in stage.labels)
    return first if stage.num_layers == 1 else f"{first} to {last}"


def _times(stages: Sequence[PredictedStage]) -> dict[str, list[str]]:
    """What each stage takes for a minibatch, by what it does."""
    recomputation = [stage.recompute_s for stage in stages]
    seconds = {
        "forward": [stage.forward_s for stage in stages],
        **({"recompute": recomputation} if any(recomputation) else {}),
        "backward": [stage.backward_s for stage in stages],
        "update": [stage.update_s for stage in stages],
        "data": [stage.reading_s for stage in stages],
    }
    return {what: [f"{milliseconds(each)} ms" if each else "-" for each in of] for what, of in seconds.items()}


def _rest(stage: PredictedStage) -> tuple[str, str]:
    return f"{stage.idle:.1%}", "-" if stage.memory_bytes is None else size_of(stage.memory_bytes)


def milliseconds(seconds: float) -> str:
    """A time as a number of milliseconds, of which nobody measures less than a thousandth."""
    value = round(seconds * 1000, 3)
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"
