"""The predicted pipelines of a sweep."""

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

from pipetrain.engine.errors import ConfigError
from pipetrain.planning.profile.profile_file import check_model, read_profile
from pipetrain.planning.profiling.predict import ProfiledRun
from pipetrain.planning.tables.prediction_tables import Case
from pipetrain.runner.config.composition import combinations, composed
from pipetrain.runner.tracking.progress import announce

_MOST = 500


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
    common, read = set(every[0]).intersection(*every), cache(read_profile)
    for number, (chosen, swept) in enumerate(zip(every, _swept(every), strict=True), 1):
        what = " ".join(word for word in chosen if word not in common)
        try:
            settings = composed(chosen)
            hidden = len(every) == 1 or settings.profile is not None  # which takes no time
            with announce(f"pipeline {number} of {len(every)}: {what}", hidden=hidden):
                profile = None if settings.profile is None else read(Path(settings.profile))
                if profile is not None:
                    check_model(settings, profile, chosen)
                run = ProfiledRun.of(settings, profile=profile, searched=searched)
                found += [*_cases_of(run, swept)]
        except ConfigError as error:
            refused[what] = error
    if not found:
        raise next(iter(refused.values()))
    # without the alternatives, which would fill lines
    return found, [f"left out: {what}: {str(error).partition('; use ')[0]}" for what, error in refused.items()]


def _cases_of(run: ProfiledRun, swept: Mapping[str, str]) -> Iterator[Case]:
    for phase, prediction in run.predictions():
        plan = run.plan(prediction)
        chosen = {
            **({"phase": str(phase.number)} if phase.number is not None else {}),
            "method": phase.choices["method"],
            "schedule": phase.choices["schedule"],
            "D": str(len(plan.stages)),
            "N": str(run.settings.train.microbatches),
            **({"replicas": plan.replicas} if max(run.cut.replicas) > 1 else {}),
            **swept,
        }
        yield Case(chosen, prediction, plan, run.notes(), run.cut.row.fits(plan.memory_bytes))


def _swept(every: Sequence[Sequence[str]]) -> list[dict[str, str]]:
    """Each member's swept settings, except those that every case shows."""
    members = [dict(word.split("=", 1) for word in chosen if "=" in word) for chosen in every]
    always = ("method", "schedule", "partition.stages", "train.microbatches")
    swept = [name for name in members[0] if name not in always and len({member[name] for member in members}) > 1]
    return [{name: member[name] for name in swept} for member in members]
