"""The memory of a stage: what its weights, its optimizer, its method and the minibatches in flight keep."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

import numpy as np

from pipetrain.config.phases import PhaseSettings
from pipetrain.config.settings import Settings
from pipetrain.errors import ConfigError
from pipetrain.program.weight_reads import StageContext
from pipetrain.schedules import ListSchedule, Schedule
from pipetrain.schedules.round_robin import UnevenReplicas

Size = TypeVar("Size", float, np.ndarray[Any, np.dtype[np.float64]])
"""Bytes of one stage, or a vector of the bytes of many stages."""

_STATES = {
    "Adam": 2,
    "AdamW": 2,
    "NAdam": 2,
    "RAdam": 2,
    "Adamax": 2,
    "Adadelta": 2,
    "Adagrad": 1,
    "RMSprop": 1,
    "Muon": 1,
    "Soap": 6,
}
"""Tensors of a weight's size that optimizers keep for each, whatever their options; SOAP's of a square matrix."""
_MORE_STATES = ("momentum", "amsgrad", "centered")
"""Options that make an optimizer keep one more."""
_UNKNOWN = 2
"""States assumed of an optimizer that is not torch's, to be on the safe side."""


@dataclass(frozen=True)
class StageSizes(Generic[Size]):
    """Bytes of a stage: `activations` that the forward of a minibatch keeps, and `inputs` that it receives for one."""

    weights: Size
    activations: Size
    inputs: Size


@dataclass(frozen=True)
class StagePlace:
    """Place of a stage in its pipeline.

    Attributes:
        r: number of stages before it.
        behind: number of stages after it.
        workers_behind: replicas of the stages after it.
        even: True if all stages have the same number of replicas; False if that is not known yet.
    """

    r: int
    behind: int
    replicas: int = 1
    workers_behind: int = 0
    even: bool = False

    @classmethod
    def row(cls, replicas: Sequence[int]) -> "list[StagePlace]":
        """Places of all stages of a pipeline."""
        even = len(set(replicas)) == 1
        last = len(replicas) - 1
        return [cls(r, last - r, count, sum(replicas[r + 1 :]), even) for r, count in enumerate(replicas)]

    @property
    def rounds_behind(self) -> int:
        """Number of one-worker stages after it that would keep as much in flight (1F1B-RR, PipeDream § 3.2)."""
        return (self.workers_behind + self.replicas - 1) // self.replicas


@dataclass(frozen=True)
class MemoryRules:
    """Memory that schedule, method and optimizer need in a phase of a run.

    Attributes:
        versions: largest number of sets of weights that a stage in this place holds.
        states: tensors of each weight's size in addition: the optimizer's, the method's statistic, and the average.
        recompute: True if only the inputs of a stage are kept.
    """

    microbatches: int
    schedule: Schedule
    versions: Callable[[StageContext], int]
    states: int
    recompute: bool = False

    def stage_bytes(self, place: StagePlace, sizes: StageSizes[Size]) -> Size:
        """The peak of a replica of a stage."""
        N, schedule = self.microbatches, self.schedule
        # a drained pipeline's memory depends on its depth, not on its workers
        behind = place.behind if schedule.synchronous else place.rounds_behind
        r, D = place.r, place.r + 1 + behind
        delay = schedule.delay(r, D, N)
        in_flight = schedule.in_flight(r, D, N) if isinstance(schedule, ListSchedule) else N
        if isinstance(schedule, UnevenReplicas) and not (place.even or schedule.synchronous):
            with suppress(ConfigError):  # as configured it may need equal numbers of replicas
                in_flight = schedule.uneven_in_flight(place.workers_behind + place.replicas - 1, place.replicas, N)
                delay = (in_flight - 1) // N
        held = in_flight / N
        context = StageContext(r, D, N, delay, schedule.delay(0, D, N))
        weights = (self.versions(context) + 1 + self.states) * sizes.weights
        if self.recompute:
            return weights + held * sizes.inputs + sizes.activations / N
        return weights + held * sizes.activations


@dataclass(frozen=True)
class MemoryModel:
    """Memory that a run needs, each of whose phases must fit."""

    phases: tuple[MemoryRules, ...]

    @classmethod
    def of(cls, settings: Settings) -> "MemoryModel":
        """Memory model of a run with these settings. Needs no torch, unless a custom method imports it.

        Raises:
            ConfigError: a schedule or a method cannot be built.
        """
        optimizer = settings.optimizer.target
        name = optimizer.path.rpartition(".")[2]
        states = 0 if name == "SGD" else _STATES.get(name, _UNKNOWN)
        states += settings.train.ema is not None
        # the last update, and during an update the weights before it
        states += 2 * (settings.optimizer.error_feedback is not None)
        states += sum(bool(optimizer.options.get(option)) for option in _MORE_STATES)
        return cls(tuple(_rules(phase, states, settings) for phase in settings.phases))

    def stage_bytes(self, place: StagePlace, sizes: StageSizes[Size]) -> Size:
        """The largest peak of a replica of a stage in any phase."""
        first, *others = (rules.stage_bytes(place, sizes) for rules in self.phases)
        for other in others:
            first = np.maximum(first, other)
        return first

    def pipeline_bytes(self, replicas: Sequence[int], sizes: Sequence[StageSizes[float]]) -> list[int]:
        """Peak bytes of a replica of each stage, over all phases."""
        places = zip(StagePlace.row(replicas), sizes, strict=True)
        return [round(self.stage_bytes(place, each)) for place, each in places]

    @property
    def drains(self) -> bool:
        """True if some phase drains after each minibatch."""
        return any(rules.schedule.synchronous for rules in self.phases)

    @property
    def flows(self) -> bool:
        """True if some phase does not drain after each minibatch."""
        return not all(rules.schedule.synchronous for rules in self.phases)

    def recomputing(self) -> "MemoryModel":
        """Memory of the same run with recomputation."""
        return MemoryModel(tuple(replace(rules, recompute=True) for rules in self.phases))

    def of_one_version(self) -> "MemoryModel":
        """Memory of the same run under a method that keeps one weight version."""
        return MemoryModel(tuple(replace(rules, versions=lambda _context: 1) for rules in self.phases))


def _rules(phase: PhaseSettings, optimizer_states: int, settings: Settings) -> MemoryRules:
    schedule: Schedule = phase.schedule.build()
    method = phase.method.build()
    if not hasattr(method, "weight_versions"):
        raise phase.method.wrong_type_error(method, "a pipetrain.Method")
    N = settings.train.microbatches
    return MemoryRules(
        microbatches=N,
        schedule=schedule,
        # what no pipeline of processes could do is planned as if it stashed what is in flight
        versions=(lambda context: context.delay + 1) if method.simulated_only else method.weight_versions,
        # a statistic is taken to keep one tensor for each weight, as `UpdateAverage` does
        states=optimizer_states + int(method.statistic(StageContext.under(schedule, 0, 2, N), {}) is not None),
        recompute=settings.train.recompute or settings.train.recompute_boundaries is not None,
    )
