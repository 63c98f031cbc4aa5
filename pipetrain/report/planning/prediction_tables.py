"""Tables of predicted pipelines, and of the largest minibatches that fit their devices."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, NamedTuple

from pipetrain.config.composition import combinations, composed
from pipetrain.config.phases import naming_phase
from pipetrain.errors import ConfigError
from pipetrain.planner.costs.cut_profile import CutProfile
from pipetrain.planner.costs.prediction import Prediction
from pipetrain.planner.max_batch import MOST_SAMPLES, Growth, activation_growth, largest_batch
from pipetrain.planner.profile.profile import Profile
from pipetrain.report.text_table import Row, both_ends, rate_of, shortened, size_of, text_table
from pipetrain.tracking.progress import announce
from pipetrain.training.profiling.predict import ProfiledRun
from pipetrain.training.profiling.profile import profile_of

_MOST = 500


class Case(NamedTuple):
    """A predicted pipeline, and its settings that may differ: method, schedule, D, N, and those of the sweep."""

    chosen: Mapping[str, str]
    prediction: Prediction
    notes: Sequence[str] = ()


def profiled_runs(words: Sequence[str]) -> Iterator[ProfiledRun]:
    """The members of a sweep such as `method=gpipe,pipedream`, each with its model's profile.

    Raises:
        ConfigError: there are too many, or one cannot run.
    """
    every = list(combinations(words))
    if len(every) > _MOST:
        raise ConfigError(f"{' '.join(words)}: {len(every)} pipelines, and at most {_MOST} are compared")
    swept = {word for chosen in every for word in chosen if any(word not in other for other in every)}
    profiles: dict[str, Profile] = {}
    for number, chosen in enumerate(every, 1):
        settings = composed(chosen)
        # all but the first of a profile in a file take no time
        shown = settings.profile is None and len(every) > 1
        what = " ".join(word for word in chosen if word in swept)
        with announce(f"pipeline {number} of {len(every)}: {what}", hidden=not shown):
            run = ProfiledRun.of(settings, profile=profiles.get(settings.profile or ""))
            if settings.profile is not None:
                profiles[settings.profile] = run.cut.profile
            yield run


def cases(words: Sequence[str]) -> Iterator[Case]:
    """A case for each member of a sweep and each phase of it.

    Raises:
        ConfigError: one cannot be predicted.
    """
    for swept, run in zip(_swept(words), profiled_runs(words), strict=True):
        for phase, prediction in run.predictions():
            numbered = {"phase": str(phase.number)} if phase.number is not None else {}
            chosen_here = {**numbered, **settings_of_case(phase.choices, run), **swept}
            yield Case(chosen_here, prediction, run.notes())


def _swept(words: Sequence[str]) -> list[dict[str, str]]:
    """Each member's swept settings, except those that `settings_of_case` returns."""
    members = [dict(word.split("=", 1) for word in chosen if "=" in word) for chosen in combinations(words)]
    always = ("method", "schedule", "partition.stages", "train.microbatches")
    swept = [name for name in members[0] if name not in always and len({member[name] for member in members}) > 1]
    return [{name: member[name] for name in swept} for member in members]


def settings_of_case(choices: Mapping[str, str], run: ProfiledRun) -> dict[str, str]:
    """The settings that every case shows."""
    return {
        "method": choices["method"],
        "schedule": choices["schedule"],
        "D": str(len(run.cut.stages)),
        "N": str(run.settings.train.microbatches),
    }


def distinguishing_names(every: Sequence[Case]) -> list[str]:
    """Names of the settings that distinguish the cases; the first of all names if the cases are equal."""
    names = list(dict.fromkeys(name for case in every for name in case.chosen))
    return [name for name in names if len({case.chosen.get(name) for case in every}) > 1] or names[:1]


def to_json(every: Sequence[Case]) -> list[dict[str, Any]]:
    """The content of prediction.json."""
    return [
        {
            **case.chosen,
            **asdict(case.prediction),
            "samples_per_s": case.prediction.samples_per_s,
            "idle": case.prediction.idle,
            "bound_by": case.prediction.bound,
        }
        for case in every
    ]


_LONGEST = 30
"""Characters of a layer's name."""


def comparison_table(cases: Sequence[Case]) -> Iterator[str]:
    """A row for each case, the fastest marked, and below them the notes of all.

    Settings that are the same in all cases are in a line above.
    """
    names = distinguishing_names(cases)
    common = [f"{name} = {value}" for name, value in cases[0].chosen.items() if name not in names]
    if common:
        yield ", ".join(common)
    fastest = min(case.prediction.time_per_minibatch_s for case in cases)
    per_sample = all(case.prediction.batch_size for case in cases)
    rows = []
    for case in cases:
        mark = "<- fastest" if len(cases) > 1 and case.prediction.time_per_minibatch_s == fastest else ""
        cells = _cells(case.prediction, per_sample=per_sample)
        rows.append([*(case.chosen.get(name, "-") for name in names), *cells, mark])
    sent = f"sent per {'sample' if per_sample else 'minibatch'}"
    heads = [*names, "ms per minibatch", "samples/s", "idle", sent, "memory", "bound by", ""]
    yield from text_table(heads, rows, "<" * len(names) + ">>>>><<")
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
        prediction.bound,
    ]


def stage_table(prediction: Prediction) -> Iterator[str]:
    """A row for each stage; of many the first and last."""
    stages = prediction.stages
    recomputes = any(stage.recompute_s for stage in stages)
    times = {kind: kind for kind in stages[0].work_s if recomputes or kind != "recomputation"}
    times |= {"recomputation": "recompute"} if recomputes else {}
    rows: list[Row] = []
    for r, (stage, link) in enumerate(zip(stages, (*prediction.link_busy, None), strict=True)):
        first, last = (shortened(label, _LONGEST) for label in stage.labels)
        labels = first if stage.num_layers == 1 else f"{first} to {last}"
        took = (stage.work_s[kind] for kind in times)
        cells = (f"{milliseconds(seconds)} ms" if seconds else "-" for seconds in took)
        memory = "-" if stage.memory_bytes is None else size_of(stage.memory_bytes)
        busy = "" if link is None else f"{link:.1%} busy"
        counts = (str(r), str(stage.num_layers), labels, str(stage.replicas))
        rows.append((*counts, *cells, f"{stage.idle:.1%}", memory, busy))
    heads = ("stage", "layers", "", "replicas", *times.values(), "idle", "memory", "link behind it")
    yield from text_table(heads, both_ends(rows, "stages"), ">><>" + ">" * len(times) + ">>>")
    if hosts := prediction.cores_busy:
        yield f"cores: {max(hosts):.1%} busy" + (f" on the busiest of {len(hosts)} machines" if len(hosts) > 1 else "")


def milliseconds(seconds: float) -> str:
    """A time as a number of milliseconds, to a thousandth at most."""
    value = round(seconds * 1000, 3)
    return f"{value:,.0f}" if value >= 999.5 else f"{value:.3g}"


def fit_table(words: Sequence[str]) -> Iterator[str]:
    """The lines of the table, a row for each member of a sweep and each phase.

    Raises:
        ConfigError: the devices' memory or the growth of activations is unknown, or a pipeline cannot be built.
    """
    for chosen in combinations(words):
        if composed(chosen).topology.memory_gigabytes is None:
            raise ConfigError("--fit: topology.memory_gigabytes=null: give the memory of a device, such as 16")
    rows, every = [], _swept(words)
    for swept, (run, other) in zip(every, map(_twice, profiled_runs(words)), strict=True):
        growth = activation_growth(run.cut, other)
        for index, phase in enumerate(run.settings.phases):
            with naming_phase(phase.number):
                run.check(phase)
            shown = [*settings_of_case(phase.choices, run).values(), *swept.values()]
            rows.append([*shown, *_fit_cells(run, index, growth)])
    heads = ("method", "schedule", "D", "N", *every[0])
    counts = ("largest batch", "microbatch", "full at stage", "which then holds")
    yield from text_table((*heads, *counts), rows, "<<>>".ljust(len(heads), "<") + ">>>>")


def _fit_cells(run: ProfiledRun, phase: int, growth: Sequence[Growth]) -> list[str]:
    """The batch, a microbatch of it, the stage that keeps it from growing, and the memory of that stage.

    `growth` is that of the activations of each stage with the batch.
    """
    n = run.settings.train.microbatches
    rooms = run.cut.row.memory_bytes

    def stage_bytes(samples: int) -> list[int]:
        return run.memory(phase, samples, [fixed + samples * per_sample for fixed, per_sample in growth])

    def overfull(samples: int) -> list[int]:
        return [r for r, (needed, room) in enumerate(zip(stage_bytes(samples), rooms, strict=True)) if needed > room]

    batch = largest_batch(lambda samples: not overfull(samples), n)
    if batch > MOST_SAMPLES - n:
        return ["any", "any", "none", size_of(max(stage_bytes(0)))]
    tight = overfull(batch + n)[0]
    needed = stage_bytes(batch or n)[tight]
    if not batch:
        return ["none", "none", str(tight), f"{size_of(needed)} for {n}"]
    return [f"{batch:,}", f"{batch // n:,}", str(tight), size_of(needed)]


def _twice(run: ProfiledRun) -> tuple[ProfiledRun, CutProfile | None]:
    """The run and, if it is measured, its cut at half the batch: activations may have a part that never grows."""
    settings, n = run.settings, run.settings.train.microbatches
    if run.cut.profile.batch_size is None:
        raise ConfigError(
            f"--fit: profile={settings.profile} does not say the batch size that it was measured with; "
            "`pipetrain profile` writes one that does"
        )
    half = settings.train.batch_size // 2 // n * n
    if settings.profile is not None or not half or run.varying:  # another minibatch might have longer samples
        return run, None
    return run, replace(run.cut, profile=profile_of(replace(settings, train=replace(settings.train, batch_size=half))))
