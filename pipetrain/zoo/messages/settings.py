"""The formats of a pipeline's messages, and where they cannot be."""

import copy
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from typing_extensions import override

from pipetrain.engine.errors import ConfigError
from pipetrain.engine.executors.pipeline_rules import PipelineRules
from pipetrain.engine.program.recomputation import RecomputeSegments
from pipetrain.engine.stage.stage import Stage
from pipetrain.zoo.messages.base import Direction, MessageFormat
from pipetrain.zoo.messages.ends import End, StageEnds
from pipetrain.zoo.messages.meter import MessageMeter


@dataclass(frozen=True)
class Messages:
    """The formats of a pipeline's messages; a direction without one has plain tensors.

    Encoded are tensors of a floating-point type with at least one dimension.

    Attributes:
        seed: of random draws, such as stochastic rounding.
        evaluation: True if activations of evaluations have the format, too; the state of links takes no part in it.
        error_every: minibatches between measurements of the error of what arrives; None for none.
        takes_gradient: first layer behind a cut -> True for each crossing tensor that takes a gradient. The others
            stay plain. At a cut without an entry, all take one.
    """

    activations: MessageFormat | None = None
    gradients: MessageFormat | None = None
    seed: int = 0
    evaluation: bool = False
    error_every: int | None = None
    takes_gradient: Mapping[int, Sequence[bool]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Checks the types of the formats.

        Raises:
            ConfigError: one is not a format, or does not say its number of parts.
        """
        for direction, form in zip(Direction, (self.activations, self.gradients), strict=True):
            given: object = form
            if not isinstance(given, MessageFormat | None):
                raise ConfigError(f"messages.{direction}={given}: must be a MessageFormat object, or None for plain")
            if given is not None and not isinstance(getattr(given, "parts", None), int):
                raise ConfigError(
                    f"messages.{direction}={given.name}: {type(given).__name__} lacks `parts`, the number of tensors "
                    "that encode returns, such as parts = 1"
                )

    @override
    def __str__(self) -> str:
        """The settings of its formats."""
        return " ".join(f"messages.{direction}={form.name}" for direction, form in self.formats().items())

    def formats(self) -> dict[Direction, MessageFormat]:
        """The formats by direction.

        Raises:
            ConfigError: one is not for its direction.
        """
        given = zip(Direction, (self.activations, self.gradients), strict=True)
        return {direction: form.meant_for(direction) for direction, form in given if form is not None}

    def check(self, rules: PipelineRules) -> None:
        """Checks that a pipeline can have these formats.

        Raises:
            ConfigError: it cannot.
        """
        segments, single = rules.segments, RecomputeSegments.of_single_stages(rules.num_stages)
        for direction, form in self.formats().items():
            given = f"messages.{direction}={form.name}"
            if rules.schedule.executor is not None:
                raise ConfigError(
                    f"{given}: schedule={rules.schedule.name} is run by torch.distributed.pipelining, whose messages "
                    f"are plain; messages.{direction}=plain, or one of pipetrain's own schedules"
                )
            if form.keeps_state and rules.replicas.several:
                raise ConfigError(
                    f"{given} with partition.replicas={list(rules.replicas.counts)}: what it sends depends on earlier "
                    "messages, and those of replicas take several links; formats without state, such as int8, work"
                )
            if form.keeps_state and segments not in (None, single):
                raise ConfigError(
                    f"{given} with train.recompute_boundaries: what it sends depends on earlier messages, and a "
                    "recomputation sends one again; formats without state, such as int8, work"
                )

    def ends_of(self, stage: Stage, *, before: bool, behind: bool) -> StageEnds:
        """The ends of a stage with a link to the stage before, to the one behind, or both."""
        first, scaled = stage.module.first, stage.scaler is not None
        ends = []
        for direction, form in self.formats().items():
            forward = direction is Direction.ACTIVATIONS
            for cut, has_link, outwards in ((first, before, False), (first + len(stage.module.layers), behind, True)):
                if has_link:
                    takes = self.takes_gradient.get(cut) if forward else None
                    ends.append(End(direction, cut, copy.deepcopy(form), takes, sends=outwards is forward))
        sends = [direction for direction, has_link in zip(Direction, (behind, before), strict=True) if has_link]
        meter = MessageMeter(stage.device, self.error_every)
        return StageEnds(ends, sends, self.seed, meter, scaled=scaled, evaluates=self.evaluation)

    def links_without_state(self, cuts: Sequence[int], saved: Collection[str]) -> list[str]:
        """Notes on links at these cuts whose format keeps state, and whose end is not among the saved ones."""
        notes = []
        for direction, form in self.formats().items():
            new = [cut for cut in cuts if form.keeps_state and End(direction, cut, form, sends=True).name not in saved]
            if new:
                layers = ", ".join(map(str, new))
                notes.append(
                    f"messages.{direction}={form.name}: the checkpoint has no state for a cut before layer {layers}; "
                    "it starts empty there"
                )
        return notes
