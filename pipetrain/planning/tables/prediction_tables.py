"""Tables of predicted pipelines."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

from pipetrain.engine.errors import ConfigError
from pipetrain.planning.costs.prediction import PredictedStage, Prediction
from pipetrain.planning.pipeline_plan import PipelinePlan
from pipetrain.planning.profile.profile import Profile
from pipetrain.planning.profiling.predict import ProfiledRun
from pipetrain.runner.config.composition import combinations, composed
from pipetrain.runner.terminal.text_table import Row, both_ends, rate_of, shortened, size_of, text_table
from pipetrain.runner.tracking.progress import announce

_MOST = 500


class Case(NamedTuple):
    """A predicted pipeline, and its settings that may differ: method, schedule, D, N, and those of the sweep."""

    chosen: Mapping[str, str]
    prediction: Prediction
    notes: Sequence[str] = ()
    plan: PipelinePlan | None = None


def cases(words: Sequence[str], *, searched: bool = False) -> tuple[list[Case], list[str]]:
    """A case for each member of a sweep such as `method=gpipe,pipedream`, and each phase of it.

    Args:
        words: settings.
        searched: True to predict the fastest pipeline of each member, False the one that `partition` says.

    Returns:
        The cases, and a line on each member that cannot run.

    Raises:
        ConfigError: there are too many members, or none can run.
    """
    every, found, refused = list(combinations(words)), list[Case](), dict[str, ConfigError]()
    if len(every) > _MOST:
        raise ConfigError(f"{' '.join(words)}: {len(every)} pipelines, and at most {_MOST} are compared")
    common, profiles = set(every[0]).intersection(*every), dict[str, Profile]()
    for number, (chosen, swept) in enumerate(zip(every, _swept(every), strict=True), 1):
        what = " ".join(word for word in chosen if word not in common)
        try:
            settings = composed(chosen)
            hidden = len(every) == 1 or settings.profile is not None  # which takes no time
            with announce(f"pipeline {number} of {len(every)}: {what}", hidden=hidden):
                run = ProfiledRun.of(settings, profile=profiles.get(settings.profile or ""), searched=searched)
                if settings.profile is not None:
                    profiles[settings.profile] = run.cut.profile
                found += [*_cases_of(run, swept)]
        except ConfigError as error:
            refused[what] = error
    if not found:
        raise next(iter(refused.values()))
    # without the alternatives, which would fill lines
    return found, [f"left out: {what}: {str(error).partition('; use ')[0]}" for what, error in refused.items()]


def _cases_of(run: ProfiledRun, swept: Mapping[str, str]) -> Iterator[Case]:
    for phase, prediction in run.predictions():
        numbered = {"phase": str(phase.number)} if phase.number is not None else {}
        chosen = {**numbered, **_settings_of_case(phase.choices, run), **swept}
        yield Case(chosen, prediction, run.notes(), run.plan(prediction))


def _swept(every: Sequence[Sequence[str]]) -> list[dict[str, str]]:
    """Each member's swept settings, except those that `_settings_of_case` returns."""
    members = [dict(word.split("=", 1) for word in chosen if "=" in word) for chosen in every]
    always = ("method", "schedule", "partition.stages", "train.microbatches")
    swept = [name for name in members[0] if name not in always and len({member[name] for member in members}) > 1]
    return [{name: member[name] for name in swept} for member in members]


def _settings_of_case(choices: Mapping[str, str], run: ProfiledRun) -> dict[str, str]:
    """The settings that every case shows."""
    counts = run.cut.replicas
    return {
        "method": choices["method"],
        "schedule": choices["schedule"],
        "D": str(len(run.cut.stages)),
        "N": str(run.settings.train.microbatches),
        **({"replicas": shortened("-".join(map(str, counts)), _LONGEST)} if max(counts) > 1 else {}),
    }


def distinguishing_names(every: Sequence[Case]) -> list[str]:
    """Names of the settings that distinguish the cases; the first of all names if the cases are equal."""
    names = list(dict.fromkeys(name for case in every for name in case.chosen))
    return [name for name in names if len({case.chosen.get(name) for case in every}) > 1] or names[:1]


def to_json(every: Sequence[Case]) -> dict[str, Any]:
    """The content of plan.json: the plan of the fastest pipeline, and all predictions."""
    fastest = min(every, key=lambda case: case.prediction.time_per_minibatch_s)
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
    return {**({} if fastest.plan is None else fastest.plan.to_json()), "pipelines": pipelines}


_IF_USED = {"recomputation": "recompute", "weight gradient": "weights"}
"""Kinds of work that some pipelines lack -> their heads."""
_LONGEST = 30
"""Characters of a layer's name."""


def comparison_table(cases: Sequence[Case]) -> Iterator[str]:
    """A row for each case, the fastest marked, and below them the notes of all.

    Settings that are the same in all cases are in a line above.
    """
    names = distinguishing_names(cases)
    if common := {name: value for name, value in cases[0].chosen.items() if name not in names}:
        yield ", ".join(f"{name} = {value}" for name, value in common.items())
    fastest = min(case.prediction.time_per_minibatch_s for case in cases)
    per_sample = all(case.prediction.batch_size for case in cases)
    rows = []
    for case in cases:
        settings = [case.chosen.get(name, "-") for name in names]
        rows.append([*settings, *_cells(case.prediction, per_sample=per_sample), ""])
        if len(cases) > 1 and case.prediction.time_per_minibatch_s == fastest:
            rows[-1][-1] = "<- fastest"
    sent = f"sent per {'sample' if per_sample else 'minibatch'}"
    heads = [*names, "ms per minibatch", "samples/s", "idle", sent, "memory", "staleness", "bound by", ""]
    yield from text_table(heads, rows, "<" * len(names) + ">>>>>><<")
    yield from dict.fromkeys(note for case in cases for note in case.notes)


def _cells(prediction: Prediction, *, per_sample: bool) -> list[str]:
    rate, samples = prediction.samples_per_s, (prediction.batch_size or 1) if per_sample else 1
    known = [stage.memory_bytes for stage in prediction.stages if stage.memory_bytes is not None]
    return [
        milliseconds(prediction.time_per_minibatch_s),
        "-" if rate is None else rate_of(rate),
        f"{prediction.idle:.1%}",
        size_of(prediction.sent_bytes / samples),
        size_of(max(known)) if known else "-",
        "-" if prediction.staleness is None else str(prediction.staleness),
        prediction.bound,
    ]


def stage_table(prediction: Prediction) -> Iterator[str]:
    """A row for each stage; of many the first and last."""
    stages = prediction.stages
    unused = {kind for kind in _IF_USED if not any(stage.work_s[kind] for stage in stages)}
    times = {kind: _IF_USED.get(kind, kind) for kind in stages[0].work_s if kind not in unused}
    links = [*(f"{busy:.1%} busy" for busy in prediction.link_busy), ""]
    rows: list[Row] = [
        (str(r), *([str(stage.process)] if prediction.several else []), *_stage_cells(stage, list(times)), link)
        for r, (stage, link) in enumerate(zip(stages, links, strict=True))
    ]
    process = ("process",) if prediction.several else ()
    heads = ("stage", *process, "layers", "", "replicas", *times.values(), "idle", "memory", "link behind it")
    aligned = ">" * len(process) + ">><>" + ">" * len(times) + ">>>"
    yield from text_table(heads, both_ends(rows, "stages"), aligned)
    if hosts := prediction.cores_busy:
        yield f"cores: {max(hosts):.1%} busy" + (f" on the busiest of {len(hosts)} machines" if len(hosts) > 1 else "")


def _stage_cells(stage: PredictedStage, kinds: Sequence[str]) -> list[str]:
    first, last = (shortened(label, _LONGEST) for label in stage.labels)
    labels = first if stage.num_layers == 1 else f"{first} to {last}"
    times = (f"{milliseconds(seconds)} ms" if (seconds := stage.work_s[kind]) else "-" for kind in kinds)
    memory = "-" if stage.memory_bytes is None else size_of(stage.memory_bytes)
    return [str(stage.num_layers), labels, str(stage.replicas), *times, f"{stage.idle:.1%}", memory]


def milliseconds(seconds: float) -> str:
    """A time as a number of milliseconds, to a thousandth at most."""
    value = round(seconds * 1000, 3)
    return f"{value:,.0f}" if value >= 999.5 else f"{value:.3g}"
