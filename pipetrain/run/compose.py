"""The schedules and methods of a configuration, as far as they need neither model nor data."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipetrain.config.composition import composed
from pipetrain.config.settings import Settings
from pipetrain.errors import ConfigError, as_configured, is_whole
from pipetrain.executors.phase import PipelineRules
from pipetrain.planner.stored_plan import Stored
from pipetrain.program.recomputation import RecomputeSegments
from pipetrain.run.build.pipeline import build_recompute_segments, build_rules
from pipetrain.run.replicas import replicas_of

_MISSING = "???"
MOST_STAGES = 256
_EPOCH = 10**9  # without data nobody knows how long one is: longer than any timeline


@dataclass(frozen=True)
class ComposedPhase:
    """One phase of a configuration.

    Attributes:
        rules: what runs.
        steps: how long; None: to the end of the run.
        batch_size: samples of a minibatch.
        names: of its method and schedule on the command line.
    """

    rules: PipelineRules
    steps: int | None
    batch_size: int
    names: Mapping[str, str]


def composed_phases(overrides: Sequence[str]) -> list[ComposedPhase]:
    """The phases that these overrides of `pipetrain run` choose.

    Raises:
        ConfigError: they do not go together, or only the model could say how many stages there are.
    """
    settings = composed(overrides)
    settings.check_targets()
    plan = Stored(settings.partition.options["path"]) if settings.choices.get("partition") == "file" else None
    num_stages, segments = _stages_and_segments(settings, plan)
    replicas = settings.replicas if plan is None else replicas_of(settings, plan)
    train = settings.train
    phases = []
    for phase in settings.phases:
        rules = build_rules(phase, num_stages, train.microbatches, segments, replicas)
        phases.append(ComposedPhase(rules, phase.length(_EPOCH), train.batch_size, phase.choices))
    return phases


def _stages_and_segments(settings: Settings, plan: Stored | None) -> tuple[int, RecomputeSegments | None]:
    partition, boundaries = settings.partition.options, settings.train.recompute_boundaries
    cuts = partition.get("boundaries", partition.get("ppv"))
    num_stages = partition.get("stages") if cuts is None else len(_list_of_cuts(partition))
    if plan is not None:
        num_stages = len(plan.plan.stages)
    if not is_whole(num_stages) or not 1 <= num_stages <= MOST_STAGES:
        raise ConfigError(
            f"partition.stages={as_configured(num_stages)}: a timeline needs the number of stages, 1 to {MOST_STAGES}"
        )
    if boundaries is not None and "boundaries" not in partition:
        raise ConfigError(
            f"train.recompute_boundaries={boundaries} names layers; without the model only partition=explicit says "
            "which stages begin with them: partition=explicit partition.boundaries=[...]"
        )
    firsts = [] if boundaries is None else _list_of_cuts(partition)
    stage_of = {layer: r for r, layer in enumerate(firsts)}
    return num_stages, build_recompute_segments(settings.train, num_stages, stage_of)


def _list_of_cuts(partition: Mapping[str, Any]) -> list[int]:
    setting = "boundaries" if "boundaries" in partition else "ppv"
    cuts = partition[setting]
    if not isinstance(cuts, list):
        shown = "is not set" if cuts == _MISSING else f"={cuts}: a list"
        raise ConfigError(
            f"partition.{setting}{' ' if cuts == _MISSING else ''}{shown}; e.g. partition.{setting}=[4,7]"
        )
    return [0, *cuts]
