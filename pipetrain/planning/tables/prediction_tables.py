"""Tables of predicted pipelines."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

from pipetrain.planning.costs.prediction import PredictedStage, Prediction
from pipetrain.planning.pipeline_plan import PipelinePlan, PlannedStage
from pipetrain.runner.terminal.text_table import Row, both_ends, range_list, rate_of, shortened, size_of, text_table


class Case(NamedTuple):
    """A row of a table.

    Attributes:
        chosen: settings that may differ, such as method, schedule, D, N, and those of a sweep.
        fits: True if the devices' memory is enough.
        ruled_out: True if the settings rule it out, so that it is only shown for comparison.
    """

    chosen: Mapping[str, str]
    prediction: Prediction
    plan: PipelinePlan | None = None
    notes: Sequence[str] = ()
    fits: bool = True
    ruled_out: bool = False


def distinguishing_names(every: Sequence[Case]) -> list[str]:
    """Names of the settings that distinguish the cases; the first of all names if the cases are equal."""
    names = list(dict.fromkeys(name for case in every for name in case.chosen))
    return [name for name in names if len({case.chosen.get(name) for case in every}) > 1] or names[:1]


def fastest_of(every: Sequence[Case]) -> Case:
    """The fastest case that the settings allow, one that fits if any does."""
    return min(every, key=lambda case: (case.ruled_out, not case.fits, case.prediction.time_per_minibatch_s))


def to_json(every: Sequence[Case], plan: PipelinePlan | None) -> dict[str, Any]:
    """The content of plan.json: a plan, and all predictions."""
    pipelines = [
        {
            **case.chosen,
            **asdict(case.prediction),
            "samples_per_s": case.prediction.samples_per_s,
            "idle": case.prediction.idle,
            "bound_by": case.prediction.bound,
        }
        for case in every
    ]
    return {**({} if plan is None else plan.to_json()), "pipelines": pipelines}


_IF_USED = {"recomputation": "recompute", "weight gradient": "weights", "update": "update", "data": "data"}
"""Kinds of work that some pipelines lack -> their heads."""
_LONGEST = 30
"""Characters of a layer's name, or of a setting."""


def comparison_table(cases: Sequence[Case]) -> Iterator[str]:
    """A row for each case, the fastest marked, and below them the notes of all.

    Settings that are the same in all cases are in a line above.
    """
    names = distinguishing_names(cases)
    if common := {name: value for name, value in cases[0].chosen.items() if name not in names}:
        yield ", ".join(f"{name} = {value}" for name, value in common.items())
    fastest = fastest_of(cases).prediction.time_per_minibatch_s
    per_sample = all(case.prediction.batch_size for case in cases)
    rows = []
    for case in cases:
        settings = [shortened(case.chosen.get(name, "-"), _LONGEST) for name in names]
        rows.append([*settings, *_cells(case, per_sample=per_sample), ""])
        counts = case.fits and not case.ruled_out
        if len(cases) > 1 and counts and case.prediction.time_per_minibatch_s == fastest:
            rows[-1][-1] = "<- fastest"
    sent = f"sent per {'sample' if per_sample else 'minibatch'}"
    heads = [*names, "ms per minibatch", "samples/s", "idle", sent, "memory", "staleness", "bound by", ""]
    aligned = "<" * len(names) + ">>>>>><<"
    if all(case.prediction.staleness is None for case in cases):
        for row in (heads, *rows):
            del row[-3]
        aligned = aligned.replace(">", "", 1)
    yield from text_table(heads, rows, aligned)
    yield from dict.fromkeys(note for case in cases for note in case.notes)


def _cells(case: Case, *, per_sample: bool) -> list[str]:
    prediction = case.prediction
    rate, samples = prediction.samples_per_s, (prediction.batch_size or 1) if per_sample else 1
    known = [stage.memory_bytes for stage in prediction.stages if stage.memory_bytes is not None]
    return [
        milliseconds(prediction.time_per_minibatch_s),
        "-" if rate is None else rate_of(rate),
        f"{prediction.idle:.1%}",
        size_of(prediction.sent_bytes / samples),
        (size_of(max(known)) if known else "-") + ("" if case.fits else ", too much"),
        "-" if prediction.staleness is None else str(prediction.staleness),
        prediction.bound,
    ]


def stage_table(prediction: Prediction, plan: PipelinePlan) -> Iterator[str]:
    """A row for each stage, with its layers by the plan; of many the first and last."""
    stages = prediction.stages
    unused = {kind for kind in _IF_USED if not any(stage.work_s[kind] for stage in stages)}
    times = {kind: _IF_USED.get(kind, kind) for kind in stages[0].work_s if kind not in unused}
    links = [*(f"{busy:.1%} busy" for busy in prediction.link_busy), ""]
    rows: list[Row] = [
        (str(r), *([str(stage.process)] if prediction.several else []), layers, *_stage_cells(stage, list(times)), link)
        for r, (stage, layers, link) in enumerate(zip(stages, map(_layers, plan.stages), links, strict=True))
    ]
    process = ("process",) if prediction.several else ()
    heads = ("stage", *process, "layers", "", "replicas", *times.values(), "idle", "memory", "link behind it")
    aligned = ">" * len(process) + "><<>" + ">" * len(times) + ">>>"
    yield from text_table(heads, both_ends(rows, "stages"), aligned)
    if hosts := prediction.cores_busy:
        yield f"cores: {max(hosts):.1%} busy" + (f" on the busiest of {len(hosts)} machines" if len(hosts) > 1 else "")


def _layers(stage: PlannedStage) -> str:
    return shortened(range_list(stage.layers), _LONGEST)


def _stage_cells(stage: PredictedStage, kinds: Sequence[str]) -> list[str]:
    first, last = (shortened(label, _LONGEST) for label in stage.labels)
    labels = first if stage.num_layers == 1 else f"{first} to {last}"
    times = (f"{milliseconds(seconds)} ms" if (seconds := stage.work_s[kind]) else "-" for kind in kinds)
    memory = "-" if stage.memory_bytes is None else size_of(stage.memory_bytes)
    return [labels, str(stage.replicas), *times, f"{stage.idle:.1%}", memory]


def milliseconds(seconds: float) -> str:
    """A time as a number of milliseconds, to a thousandth at most."""
    value = round(seconds * 1000, 3)
    return f"{value:,.0f}" if value >= 999.5 else f"{value:.3g}"
