"""The memory of a stage: what its weights, its optimizer, its method and the minibatches in flight keep."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, reduce
from math import gcd
from typing import Any, Generic, TypeVar

import numpy as np

from pipetrain.engine.errors import ConfigError
from pipetrain.engine.program.recomputation import RecomputeSegments
from pipetrain.engine.program.weight_reads import StageContext
from pipetrain.engine.schedules import Kind, ListSchedule, Placement, Schedule
from pipetrain.engine.schedules.base import Family
from pipetrain.engine.schedules.round_robin import UnevenReplicas
from pipetrain.planning.profile.profile import Profile, ProfiledLayer, ProfiledWeight
from pipetrain.runner.config.optimizer import OptimizerSettings
from pipetrain.runner.config.phases import PhaseSettings
from pipetrain.runner.config.schema import TrainConfig
from pipetrain.runner.config.settings import Settings
from pipetrain.runner.partition.shared_weight import SharedWeight

Size = TypeVar("Size", float, np.ndarray[Any, np.dtype[np.float64]])
"""Bytes of one stage, or a vector of the bytes of many stages."""

_STATES = {
    "SGD": (0, 0),
    "Adam": (2, 1),
    "AdamW": (2, 1),
    "NAdam": (2, 2),
    "RAdam": (2, 1),
    "Adamax": (2, 1),
    "Adadelta": (2, 1),
    "Adagrad": (1, 1),
    "RMSprop": (1, 1),
}
"""Tensors of a weight's size, and single numbers, that torch's optimizers keep for each, whatever their options."""
_NUMBER_BYTES = 4
_MORE_STATES = ("momentum", "amsgrad", "centered")
"""Options that make them keep one tensor more."""
_MOST_ON_EACH = 64
"""Stages of a device."""
_UNKNOWN = 2
"""Tensors assumed of an optimizer that cannot be asked, to be on the safe side."""
_SQUARE = ProfiledWeight("", (64, 64), 4)
"""Stands for weights whose shapes are unknown."""


@dataclass(frozen=True)
class StageSizes(Generic[Size]):
    """Bytes of a stage.

    Attributes:
        weights: of one version, frozen ones included.
        trainable: of the weights among them that are trained.
        state: of the optimizer.
        activations: that the forward of a minibatch keeps, `entering` included.
        entering: of the inputs among them that the stage before keeps, too.
        inputs: that it receives for a minibatch.
        outputs: that it sends for a minibatch.
        gradients: that it sends back for a minibatch, at most.
        put_aside: that a split backward keeps of a minibatch from B to W.
        read_ahead: of the minibatch of data that it reads ahead: the model's inputs, targets, or both.
    """

    weights: Size
    trainable: Size
    state: Size
    activations: Size
    entering: Size
    inputs: Size
    outputs: Size
    gradients: Size
    put_aside: Size | float = 0.0
    read_ahead: Size | float = 0.0


@dataclass(frozen=True)
class StagePlace:
    """Place of a stage in its pipeline.

    Attributes:
        r: number of stages before it.
        behind: number of stages after it.
        workers_behind: replicas of the stages after it.
        even: True if all stages have the same number of replicas; False if that is not known yet.
        before: replicas of the stage before it; None if not known yet: as many as its own.
    """

    r: int
    behind: int
    replicas: int = 1
    workers_behind: int = 0
    even: bool = False
    before: int | None = None

    @classmethod
    def row(cls, replicas: Sequence[int]) -> "list[StagePlace]":
        """Places of all stages of a pipeline."""
        even = len(set(replicas)) == 1
        last = len(replicas) - 1
        before = [None, *replicas]
        return [cls(r, last - r, count, sum(replicas[r + 1 :]), even, before[r]) for r, count in enumerate(replicas)]

    @property
    def rounds_behind(self) -> int:
        """Number of one-worker stages after it with the same minibatches in flight (1F1B-RR, PipeDream § 3.2)."""
        return (self.workers_behind + self.replicas - 1) // self.replicas

    @property
    def sharing(self) -> tuple[int, int]:
        """Number of workers of the stage before with which a worker shares minibatches, and of its own with each."""
        before = self.before or self.replicas
        common = gcd(before, self.replicas)
        return before // common, self.replicas // common


@dataclass(frozen=True)
class MemoryRules:
    """Memory that schedule, method and optimizer need in a phase of a run.

    Attributes:
        versions: largest number of sets of weights that a stage in this place holds.
        more: tensors of each trainable weight's size that a stage in this place holds beside those and the gradients:
            the method's statistic, the average, and the tensors of error feedback.
        recompute: (stages before, stages behind) -> True if the stage stores its inputs, and the number of backwards
            before which it recomputes; None: it keeps its activations.
    """

    microbatches: int
    schedule: Schedule
    versions: Callable[[StageContext], int]
    more: Callable[[StageContext], float]
    recompute: Callable[[int, int], tuple[bool, int]] | None = None

    def stage_bytes(self, place: StagePlace, sizes: StageSizes[Size]) -> Size:
        """The peak of a replica of a stage, with the messages that may have yet to arrive."""
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
        # all versions have the same frozen weights
        weights: Size = sizes.weights + (self.versions(context) + self.more(context)) * sizes.trainable + sizes.state
        weights += sizes.read_ahead
        at_once = N if schedule.family is Family.WHOLE_BACKWARD else 1
        weights += self._sent_back(place, D) * at_once / N * sizes.gradients
        if isinstance(schedule, ListSchedule) and schedule.splits_backward:
            return weights + _largest(
                in_flight / N * sizes.activations + waiting / N * sizes.put_aside
                for in_flight, waiting in split_in_flight(schedule, r, D, N)
            )
        if self.recompute is None:  # the activations include the outputs
            return weights + held * sizes.activations
        weights += sizes.outputs / N
        stores, lead = self.recompute(r, behind)
        recomputed = min(in_flight, (lead + 1) * at_once) / N
        if stores:
            return weights + held * sizes.inputs + recomputed * (sizes.activations - sizes.entering)
        return weights + recomputed * sizes.activations

    def _sent_back(self, place: StagePlace, D: int) -> float:
        """Number of messages of gradients that a worker keeps.

        For each worker of the stage before, it keeps those that this worker may not have taken yet, and one more. The
        first stage has a number as well, as if it sent any.
        """
        schedule, N = self.schedule, self.microbatches
        if not isinstance(schedule, ListSchedule):
            return 1
        in_flight = schedule.in_flight(max(place.r - 1, 0), D, N)
        if place.before and isinstance(schedule, UnevenReplicas) and not (place.even or schedule.synchronous):
            with suppress(ConfigError):
                behind = place.before + place.replicas + place.workers_behind - 1
                in_flight = schedule.uneven_in_flight(behind, place.before, N)
        peers, shares = place.sharing
        rounds, rest = divmod(in_flight, shares * N)  # of the minibatches of each, one in so many comes from this one
        at_once = N if schedule.family is Family.WHOLE_BACKWARD else 1
        return peers * ((rounds * N + min(rest, N)) / at_once + 1)


def split_in_flight(schedule: ListSchedule, r: int, D: int, N: int) -> set[tuple[int, int]]:
    """(microbatches between F and B, between B and W) of a stage whose backwards are split, at all times."""
    found, before, after = {(0, 0)}, 0, 0
    minibatches = 1 if schedule.synchronous else 2 * (schedule.delay(r, D, N) + 1)
    for op in schedule.operations(r, D, N, minibatches):
        before += (op.kind is Kind.FORWARD) - (op.kind is Kind.BACKWARD)
        after += (op.kind is Kind.BACKWARD) - (op.kind is Kind.WEIGHT_GRADIENT)
        found.add((before, after))
    return found


def _largest(sizes: Iterable[Size]) -> Size:
    return reduce(np.maximum, sizes)


@dataclass(frozen=True)
class MemoryModel:
    """Memory that a run needs, each of whose phases must fit."""

    phases: tuple[MemoryRules, ...]

    @classmethod
    def of(cls, settings: Settings, segments: RecomputeSegments | None = None) -> "MemoryModel":
        """Memory model of a run with these settings. Needs no torch, unless a custom method imports it.

        Args:
            settings: of the run.
            segments: of its stages; None if these are not known yet: with `train.recompute_boundaries`, the model then
                has the most that any segments take.

        Raises:
            ConfigError: a schedule or a method cannot be built.
        """
        return cls(tuple(_rules(phase, settings, segments) for phase in settings.phases))

    def stage_bytes(self, place: StagePlace, sizes: StageSizes[Size]) -> Size:
        """The largest peak of a replica of a stage in any phase."""
        return _largest(rules.stage_bytes(place, sizes) for rules in self.phases)

    def pipeline_bytes(
        self, replicas: Sequence[int], sizes: Sequence[StageSizes[float]], placement: Placement | None = None
    ) -> list[int]:
        """Peak bytes of a device of each stage, over all phases.

        With `placement`, whose devices have several stages, a device has the sum of the peaks of its stages.
        """
        places = zip(StagePlace.row(replicas), sizes, strict=True)
        peaks = [float(self.stage_bytes(place, each)) for place, each in places]
        return list(map(round, peaks if placement is None else placement.sums(peaks)))

    def placement(self, devices: int) -> Placement:
        """The stages of each of so many devices, without replicas."""
        schedule = self.phases[0].schedule
        placements = map(schedule.placement, range(devices, _MOST_ON_EACH * devices + 1))
        found = (each for each in placements if each.num_processes == devices)
        return next(found, Placement.one_each(devices))

    @property
    def microbatches(self) -> int:
        """N, the same in all phases."""
        return self.phases[0].microbatches

    @property
    def drains(self) -> bool:
        """True if some phase drains after each minibatch."""
        return any(rules.schedule.synchronous for rules in self.phases)

    @property
    def flows(self) -> bool:
        """True if some phase does not drain after each minibatch."""
        return not all(rules.schedule.synchronous for rules in self.phases)

    def depends_on_stages_before(self, count: int) -> bool:
        """True if a stage's memory depends on how many stages precede it; the first one sends no gradients back."""
        sizes = StageSizes(*[1.0] * 8)
        first = replace(sizes, gradients=0.0)
        return self.flows and any(
            self.stage_bytes(StagePlace(count, behind), each) != self.stage_bytes(StagePlace(r, behind), each)
            for behind in (0, count)
            for r, each in ((0, first), (1, sizes))
        )


def _each_alone(_before: int, _behind: int) -> tuple[bool, int]:
    return True, 0


def _recomputation(
    train: TrainConfig, segments: RecomputeSegments | None
) -> Callable[[int, int], tuple[bool, int]] | None:
    if segments is not None:
        return lambda before, _: (segments.begins(before), segments.lead(before))
    if train.recompute_boundaries is not None:
        return lambda _, behind: (True, 2 * behind)
    return _each_alone if train.recompute else None


def _of_averaging(settings: Settings) -> float:
    """Tensors of each weight's size that a replica which trains alone holds besides.

    They are the mean, the places of the elements, the moving average of changes, and what all replicas have sent and
    not yet averaged.
    """
    from pipetrain.runner.training.components.averaging import averaging_rule  # with torch

    rule, replicas = averaging_rule(settings), max(settings.replicas.counts or (2,))
    tensors: float = 2 + (rule.correction == "ema") + rule.delay * (1 + replicas) / rule.parts
    return tensors


def _rules(phase: PhaseSettings, settings: Settings, segments: RecomputeSegments | None) -> MemoryRules:
    schedule: Schedule = phase.schedule.build()
    method = phase.method.build()
    if not hasattr(method, "weight_versions"):
        raise phase.method.wrong_type_error(method, "a pipetrain.Method")
    N = settings.train.microbatches
    # with error feedback the last update, and during an update the weights before it
    more = (settings.train.ema is not None) + 2.0 * (settings.optimizer.error_feedback is not None)
    if settings.replicas.delay is not None:
        more += _of_averaging(settings)
    return MemoryRules(
        microbatches=N,
        schedule=schedule,
        # what no pipeline of processes could do is planned as if it stashed what is in flight
        versions=(lambda context: context.delay + 1) if method.simulated_only else method.weight_versions,
        # a statistic is taken to keep one tensor for each weight, as `UpdateAverage` does
        more=lambda context: more + (method.statistic(context, {}) is not None),
        recompute=_recomputation(settings.train, segments),
    )


def with_states(profile: Profile, settings: OptimizerSettings) -> Profile:
    """The profile with the bytes of the optimizer's state: `state_bytes` of its layers and shared weights.

    Weights of unknown shapes count as square matrices. Needs no torch for torch's most common optimizers.
    """
    # layers of one kind have many weights of the same shape
    counted = cache(lambda group, weight: _state_bytes(settings, group, weight))

    def state_of(weight: ProfiledWeight) -> int:
        return int(counted(settings.group_of(weight.name, len(weight.shape)), replace(weight, name="")))

    per_byte = state_of(_SQUARE) // _SQUARE.weight_bytes

    def of_layer(layer: ProfiledLayer) -> int:
        return per_byte * layer.weight_bytes if layer.weights is None else sum(map(state_of, layer.weights))

    def of_shared(shared: SharedWeight) -> int:
        weights = profile.shared_by(shared.layers)
        return per_byte * shared.weight_bytes if weights is None else sum(map(state_of, weights))

    return replace(
        profile,
        layers=tuple(replace(layer, state_bytes=of_layer(layer)) for layer in profile.layers),
        shared_weights=tuple(replace(each, state_bytes=of_shared(each)) for each in profile.shared_weights),
    )


def _state_bytes(settings: OptimizerSettings, group: int, weight: ProfiledWeight) -> int:
    """Bytes of the optimizer's state of a weight in a group of the settings, from 1; 0 for none of them."""
    of_group = settings.groups[group - 1].options if group else {}
    name = settings.target.path.removeprefix("torch.optim.")
    if name in _STATES:
        (tensors, numbers), options = _STATES[name], {**settings.target.options, **of_group}
        tensors += sum(bool(options.get(option)) for option in _MORE_STATES)
        return tensors * weight.weight_bytes + numbers * _NUMBER_BYTES
    from pipetrain.engine.optim.stage_optimizer import state_bytes  # with torch

    try:
        return state_bytes(settings.target.build, of_group, weight.shape, weight.element_bytes)
    except Exception:  # its step depends on values, or a run refuses it and says so
        return _UNKNOWN * weight.weight_bytes
