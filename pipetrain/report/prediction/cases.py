"""The predicted pipelines that are compared, each with what tells it from the others."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from pipetrain.config.composition import combinations, composed
from pipetrain.errors import ConfigError
from pipetrain.planner.prediction import Prediction
from pipetrain.planner.profile import Profile
from pipetrain.run.profiling.predict import ProfiledRun
from pipetrain.tracking.progress import told

_MOST = 500


@dataclass(frozen=True)
class Case:
    """One predicted pipeline.

    Attributes:
        chosen: what is asked of it and may differ between cases: method, schedule, D, N, and the words of the sweep.
        prediction: of it.
        notes: what to know of it.
    """

    chosen: Mapping[str, str]
    prediction: Prediction
    notes: Sequence[str] = ()


def profiled_runs(words: Sequence[str]) -> Iterator[tuple[list[str], ProfiledRun]]:
    """The members of a sweep such as `method=gpipe,pipedream`, each with its model's profile; one where it is none.

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
        with told(f"pipeline {number} of {len(every)}: {what}", hidden=not shown):
            run = ProfiledRun.of(settings, profile=profiles.get(settings.profile or ""))
            if settings.profile is not None:
                profiles[settings.profile] = run.cut.profile
            yield chosen, run


def cases(words: Sequence[str]) -> Iterator[Case]:
    """A case for each member of a sweep and each phase of it.

    Raises:
        ConfigError: one cannot be predicted.
    """
    swept = _swept(words)
    for chosen, run in profiled_runs(words):
        said = dict(word.split("=", 1) for word in chosen if "=" in word)
        for phase, prediction in run.predictions():
            numbered = {"phase": str(phase.number)} if phase.number is not None else {}
            chosen_here = {**numbered, **named(phase.choices, run), **{name: said[name] for name in swept}}
            yield Case(chosen_here, prediction, run.notes())


def named(choices: Mapping[str, str], run: ProfiledRun) -> dict[str, str]:
    """What every case is called by."""
    return {
        "method": choices["method"],
        "schedule": choices["schedule"],
        "D": str(len(run.cut.stages)),
        "N": str(run.settings.train.microbatches),
    }


def _swept(words: Sequence[str]) -> list[str]:
    """The settings of which a sweep tries several values, those aside that every case shows."""
    members = list(combinations(words))
    shown = {"method", "schedule", "partition.stages", "train.microbatches"}
    values: dict[str, set[str]] = {}
    for member in members:
        for name, _, value in (word.partition("=") for word in member):
            values.setdefault(name, set()).add(value)
    return [name for name, tried in values.items() if len(tried) > 1 and name not in shown]


def differing(every: Sequence[Case]) -> list[str]:
    """What cases are told apart by; of equal ones the first thing that they are called by."""
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
