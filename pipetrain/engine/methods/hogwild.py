"""Hogwild-like asynchrony: every stage reads weights of a random age (PipeMare app. E, eq. 16)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import ClassVar

from typing_extensions import override

from pipetrain.engine.methods._old_versions import ReadsOldVersion, check_one_or_each
from pipetrain.engine.methods._pipemare_delays import check_anneal_steps, forward_delay
from pipetrain.engine.number_range import NOT_NEGATIVE, POSITIVE
from pipetrain.engine.program.weight_reads import ReadContext, StageContext, t1_lr_scale
from pipetrain.engine.schedules.base import Family
from pipetrain.engine.schedules.replicas import Replicas
from pipetrain.engine.seeding import key

_PURPOSE = 0x6877  # keeps these draws apart from others that are keyed by the same numbers


@cache
def _largest_delay(D: int, N: int, workers: Replicas | None) -> int:
    """PipeMare's largest delay of any stage, which is stage 0's unless numbers of replicas differ."""
    return max(forward_delay(StageContext(r, D, N, 0, 0, workers)) for r in range(D))


@dataclass(frozen=True)
class Hogwild(ReadsOldVersion):
    """F and B read W_{t-τ}, τ = floor(x), x exponential conditioned on x <= max_delay; drawn per stage and update.

    Attributes:
        seed: what the delays are drawn from.
        mean_delay: the exponential's mean in updates, for all stages or one for each; None: PipeMare's τ of the stage.
        max_delay: the largest x, the same for all stages; None: four times the largest mean.
        t1: PipeMare's learning-rate rescheduling with the mean as τ.
        anneal_steps: K of T1, in updates.
        means: `mean_delay` as a tuple of one, or of one for each stage.
    """

    name: ClassVar[str] = "hogwild"
    family: ClassVar[Family] = Family.CONTINUOUS
    simulated_only: ClassVar[bool] = True
    seed: int = 0
    mean_delay: float | Sequence[float] | None = None
    max_delay: float | None = None
    t1: bool = False
    anneal_steps: int = 1000
    means: tuple[float, ...] | None = field(init=False, repr=False)

    def __post_init__(self) -> None:
        check_anneal_steps(self.anneal_steps)
        means = None
        if self.mean_delay is not None:
            means = tuple(self.mean_delay) if isinstance(self.mean_delay, list | tuple) else (self.mean_delay,)
        for mean in means or ():
            POSITIVE.check("method.mean_delay", mean, "or null for PipeMare's delay of the stage")
        object.__setattr__(self, "means", means)
        if self.max_delay is not None:
            NOT_NEGATIVE.check("method.max_delay", self.max_delay, "or null for four times the largest mean")

    def mean(self, context: StageContext) -> float:
        """The mean of a stage's exponential."""
        if self.means is None:
            return forward_delay(context)
        return self.means[context.stage] if len(self.means) > 1 else self.means[0]

    def largest(self, context: StageContext) -> float:
        """The largest x of any stage."""
        if self.max_delay is not None:
            return self.max_delay
        if self.means is not None:
            return 4.0 * max(self.means)
        return 4.0 * _largest_delay(context.num_stages, context.num_microbatches, context.workers)

    def delay(self, context: StageContext, minibatch: int) -> int:
        """τ of a minibatch, counted from the start of the run: the conditioned distribution's inverse where it fell."""
        mean, largest = self.mean(context), self.largest(context)
        drawn = key(self.seed, context.stage, minibatch, _PURPOSE) / 2.0**63
        return int(-mean * math.log1p(drawn * math.expm1(-largest / mean)))

    @override
    def age(self, at: ReadContext) -> int:
        return self.delay(at.context, at.minibatch_of_run)

    @override
    def weight_versions(self, context: StageContext) -> int:
        """The newest version, and one old version per update of the largest delay."""
        return max(int(self.largest(context)), context.delay) + 1

    @override
    def learning_rate_scale(self, context: StageContext, update: int) -> float:
        return t1_lr_scale(max(1.0, self.mean(context)), update, self.anneal_steps) if self.t1 else 1.0

    @override
    def check(self, num_stages: int, num_microbatches: int) -> None:
        if self.means is not None:
            check_one_or_each("method.mean_delay", self.means, "means", num_stages)
