"""The memory of a stage: what its weights, its optimizer, its method and the minibatches in flight keep."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

import numpy as np

from pipetrain.config.instantiate import Target
from pipetrain.config.phases import PhaseSettings
from pipetrain.config.settings import Settings
from pipetrain.schedules import ListSchedule, Schedule
from pipetrain.theory.closed_forms import CLOSED, Position

Size = TypeVar("Size", float, np.ndarray[Any, np.dtype[np.float64]])
"""Bytes of one stage, or of many at once."""

_STATES = {"Adam": 2, "AdamW": 2, "NAdam": 2, "RAdam": 2, "Adamax": 2, "Adadelta": 2, "Adagrad": 1, "RMSprop": 1}
"""Tensors of a weight's size that torch's optimizers keep for each, whatever their options."""
_MORE_STATES = ("momentum", "amsgrad", "centered")
"""Options that make an optimizer keep one more."""
_PREDICTING = ("lwp",)
"""Methods that read a prediction from a running average, one set of weights more while a forward lasts."""
_UNKNOWN = 2
"""Of an optimizer that is not torch's, to be on the safe side."""


@dataclass(frozen=True)
class StageSizes(Generic[Size]):
    """What a stage consists of, in bytes.

    Attributes:
        weights: of its weights.
        activations: what the forward of a whole minibatch keeps for its backward.
        inputs: what a whole minibatch brings it from the stage before.
    """

    weights: Size
    activations: Size
    inputs: Size


@dataclass(frozen=True)
class MemoryRules:
    """What schedule, method and optimizer keep in a phase of a run.

    Attributes:
        microbatches: N.
        in_flight: (r, D, N) -> forwards that a stage has started and not finished backward, in microbatches.
        versions: sets of weights that a stage holds at most.
        states: tensors of a weight's size beside weights and gradients: the optimizer's, and the method's statistic.
        recompute: whether only the inputs of a stage are kept.
    """

    microbatches: int
    in_flight: Callable[[int, int, int], int]
    versions: Callable[[Position], int]
    states: int
    recompute: bool = False

    def stage_bytes(self, r: int, behind: int, sizes: StageSizes[Size]) -> Size:
        """The peak of stage `r`, behind which `behind` follow."""
        N = self.microbatches
        at = Position(r, r + 1 + behind, N)
        held = self.in_flight(at.r, at.D, N) / N
        weights = (self.versions(at) + 1 + self.states) * sizes.weights
        if self.recompute:
            return weights + held * sizes.inputs + sizes.activations / N
        return weights + held * sizes.activations


@dataclass(frozen=True)
class MemoryModel:
    """The same of a whole run, each of whose phases must fit."""

    phases: tuple[MemoryRules, ...]

    @classmethod
    def of(cls, settings: Settings) -> "MemoryModel":
        """What a run with these settings keeps. Needs no torch.

        Raises:
            ConfigError: a schedule cannot be built.
        """
        optimizer = optimizer_states(settings.optimizer.target)
        return cls(tuple(_rules(phase, optimizer, settings) for phase in settings.phases))

    def stage_bytes(self, r: int, behind: int, sizes: StageSizes[Size]) -> Size:
        """The largest peak of stage `r`, behind which `behind` follow, in any phase."""
        first, *others = (rules.stage_bytes(r, behind, sizes) for rules in self.phases)
        for other in others:
            first = np.maximum(first, other)
        return first

    def recomputing(self) -> "MemoryModel":
        """The same run with recomputation."""
        return MemoryModel(tuple(replace(rules, recompute=True) for rules in self.phases))

    def of_one_version(self) -> "MemoryModel":
        """The same run under a method that keeps one weight version."""
        return MemoryModel(tuple(replace(rules, versions=lambda _: 1) for rules in self.phases))


def stages_behind(workers: int, replicas: int) -> int:
    """How many unreplicated stages would keep as much in flight behind one with replicas (1F1B-RR, PipeDream § 3.2).

    Args:
        workers: from this stage to the last, its own included.
        replicas: of this stage.
    """
    return (workers - 1) // replicas


def optimizer_states(optimizer: Target) -> int:
    """Tensors of a weight's size that the optimizer keeps for each weight."""
    name = optimizer.path.rpartition(".")[2]
    more = sum(bool(optimizer.options.get(option)) for option in _MORE_STATES)
    return more + (0 if name == "SGD" else _STATES.get(name, _UNKNOWN))


def _rules(phase: PhaseSettings, optimizer: int, settings: Settings) -> MemoryRules:
    schedule: Schedule = phase.schedule.build()
    return MemoryRules(
        microbatches=settings.train.microbatches,
        in_flight=schedule.in_flight if isinstance(schedule, ListSchedule) else _all_of_a_minibatch,
        versions=_versions(phase, schedule),
        states=optimizer + int(_keeps_statistic(phase)),
        recompute=settings.train.recompute or settings.train.recompute_boundaries is not None,
    )


def _all_of_a_minibatch(_r: int, _D: int, N: int) -> int:
    return N


def _versions(phase: PhaseSettings, schedule: Schedule) -> Callable[[Position], int]:
    """By the method's closed form; one that has none is taken to stash as many as there are minibatches in flight."""
    name, options = phase.choices["method"], phase.method.options
    if schedule.synchronous or (name == "pipemare" and not options.get("t2", True)):
        return lambda _: 1
    if name in _PREDICTING:
        return CLOSED["pipeoptim"].versions
    if name == "pipedream" or name not in CLOSED:
        entered = bool(options.get("vertical_sync"))
        return lambda at: schedule.delay(0 if entered else at.r, at.D, at.N) + 1
    return CLOSED[name].versions


def _keeps_statistic(phase: PhaseSettings) -> bool:
    """Whether there is a running average of the changes of every weight."""
    return phase.choices["method"] in _PREDICTING or bool(phase.method.options.get("t2"))
