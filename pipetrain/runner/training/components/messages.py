"""The formats of a run's messages: built, and checked against its pipeline."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch

from pipetrain.engine.arithmetic import ComputeOptions
from pipetrain.engine.errors import ConfigError
from pipetrain.engine.executors.pipeline import Messages
from pipetrain.engine.executors.pipeline_rules import Phase
from pipetrain.engine.models.chain import LayerChain
from pipetrain.engine.schedules import Placement
from pipetrain.engine.tensors import Tensors
from pipetrain.runner.config.instantiate import Target
from pipetrain.runner.config.phases import naming_phase
from pipetrain.runner.config.settings import Settings
from pipetrain.runner.partition.run_plan import Plan

TakesGradient = Mapping[int, Sequence[bool]]
"""First layer behind a cut -> True for each tensor that crosses it and takes a gradient."""


def _of_zoo(name: str) -> Any:
    """A class of the zoo, which the runner names and does not import."""
    return Target("messages", f"pipetrain.zoo.messages.{name}", {}).located()


def build_messages(settings: Settings, takes_gradient: TakesGradient) -> Messages | None:
    """The formats of a run's messages; None if all are plain."""
    formats = {}
    for direction, target in settings.messages.targets.items():
        try:
            found = target.build()
        except ConfigError as error:
            known = str(error).startswith(target.section)  # else the format's own, which begins with an option
            raise error if known else ConfigError(f"{target.section}.{error}") from error
        if not isinstance(found, _of_zoo("MessageFormat")):
            raise target.wrong_type_error(found, "a pipetrain.MessageFormat")
        formats[direction] = found
    if not formats:
        return None
    given = settings.messages
    messages: Messages = _of_zoo("Messages")(
        **formats,
        seed=settings.seed,
        evaluation=given.evaluation,
        error_every=given.error_every,
        takes_gradient=takes_gradient,
    )
    return messages


def check_messages(settings: Settings, plan: Plan, phases: Sequence[Phase]) -> list[str]:
    """A note if there is no message that the formats are for."""
    if (messages := build_messages(settings, {})) is None:
        return []
    if plan.finegrained:
        raise ConfigError(f"{messages}: with partition=finegrained no stage sends messages; plain works")
    for phase, chosen in zip(phases, settings.phases, strict=True):
        with naming_phase(chosen.number):
            messages.check(phase.rules)
    rules = phases[0].rules
    if not any(map(rules.placement.crosses, range(rules.num_stages - 1))):
        return [f"warning: {messages}: has no effect, because no stage sends messages to another process"]
    return []


def links_without_state(settings: Settings, plan: Plan, placement: Placement, saved: Collection[str]) -> list[str]:
    """Notes on links whose format keeps state, and which a resumed run, with these saved ends, begins without."""
    messages: Any = build_messages(settings, {})  # the engine, whose protocol it has, resumes no run
    cuts = [first for r, (first, _) in enumerate(plan.bounds[1:]) if placement.crosses(r)]
    notes: list[str] = [] if messages is None else messages.links_without_state(cuts, saved)
    return notes


def gradients_across_cuts(
    chain: LayerChain, inputs: Tensors, cuts: Collection[int], arithmetic: ComputeOptions
) -> dict[int, tuple[bool, ...]]:
    """First layer behind each cut -> True for each tensor that crosses it and takes a gradient.

    Found by a forward of a few samples in evaluation mode, which changes no buffer and draws nothing.
    """
    found: dict[int, tuple[bool, ...]] = {}
    tensors = arithmetic.cast_inputs(tuple(tensor.clone() for tensor in inputs))
    with torch.enable_grad(), chain.evaluating(), arithmetic.computing(inputs[0].device):
        for index, layer in enumerate(chain.layers):
            if index in cuts:
                found[index] = tuple(tensor.requires_grad for tensor in tensors)
            result = layer(*tensors)
            tensors = result if isinstance(result, tuple) else (result,)
    return found
