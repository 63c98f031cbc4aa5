"""The phases that settings choose, without data and model: what a timeline needs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from pipetrain.engine.errors import ConfigError, as_configured, is_whole
from pipetrain.engine.executors.pipeline_rules import PipelineRules
from pipetrain.engine.program.recomputation import RecomputeSegments
from pipetrain.runner.config.composition import composed
from pipetrain.runner.config.settings import Settings
from pipetrain.runner.partition.run_plan import replica_counts
from pipetrain.runner.training.components.pipeline import build_pipeline_rules, build_recompute_segments

_MISSING = "???"
MOST_STAGES = 256
_EPOCH = 10**9  # the length is unknown without data: longer than any timeline


@dataclass(frozen=True)
class ComposedPhase:
    """One phase of a configuration.

    Attributes:
        steps: its length; None: to the end of the run.
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
    rule = settings.partition.build() if settings.choices.get("partition") == "file" else None
    num_stages, segments = _stages_and_segments(settings, None if rule is None else len(rule.replicas))
    replicas = replace(settings.replicas, counts=replica_counts(settings, rule))
    train = settings.train
    phases = []
    for phase in settings.phases:
        rules = build_pipeline_rules(phase, num_stages, train.microbatches, segments, replicas)
        phases.append(ComposedPhase(rules, phase.length(_EPOCH), train.batch_size, phase.choices))
    return phases


def _stages_and_segments(settings: Settings, planned: int | None) -> tuple[int, RecomputeSegments | None]:
    partition, boundaries = settings.partition.options, settings.train.recompute_boundaries
    cuts = next((name for name in ("boundaries", "ppv") if name in partition), None)
    firsts: list[int] = []
    num_stages = partition.get("stages") if planned is None else planned
    if planned is None and cuts is not None:
        if not isinstance(partition[cuts], list):
            wrong = " is not set" if partition[cuts] == _MISSING else f"={partition[cuts]}: must be a list"
            raise ConfigError(f"partition.{cuts}{wrong}; e.g. partition.{cuts}=[4,7]")
        firsts = [0, *partition[cuts]]
        num_stages = len(firsts)
    if not is_whole(num_stages) or not 1 <= num_stages <= MOST_STAGES:
        raise ConfigError(
            f"partition.stages={as_configured(num_stages)}: a timeline needs the number of stages, 1 to {MOST_STAGES}"
        )
    if boundaries is not None and cuts != "boundaries":
        raise ConfigError(
            f"train.recompute_boundaries={boundaries} names layers, and only partition=explicit says which stages "
            "they begin without building the model; set partition=explicit partition.boundaries=[...]"
        )
    stage_of = {layer: r for r, layer in enumerate(firsts)}
    return num_stages, build_recompute_segments(settings.train, num_stages, stage_of)
