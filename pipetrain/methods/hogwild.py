"""Hogwild-like asynchrony: every stage reads weights of a random age (PipeMare app. E, eq. 16)."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

from pipetrain.errors import ConfigError
from pipetrain.methods.base import Method
from pipetrain.methods.pipemare import check_anneal_steps, forward_delay, rescheduled
from pipetrain.program.weight_reads import Moment, StageContext, WeightRead
from pipetrain.schedules.base import Family
from pipetrain.seeding import key


class Hogwild(Method):
    """F and B read W_{t-τ}, τ = floor(x), x exponential conditioned on x <= max_delay; drawn per stage and update.

    Args:
        seed: what the delays are drawn from.
        mean_delay: the exponential's mean in updates, for all stages or one for each; null: PipeMare's τ of the stage.
        max_delay: the largest x, the same for all stages; null: four times the largest mean.
        t1: PipeMare's learning-rate rescheduling with the mean as τ.
        anneal_steps: K of T1, in updates.

    Raises:
        ConfigError: a delay is negative, or a mean 0.
    """

    name: ClassVar[str] = "hogwild"
    family: ClassVar[Family] = Family.CONTINUOUS
    simulated_only: ClassVar[bool] = True

    def __init__(
        self,
        seed: int = 0,
        mean_delay: float | Sequence[float] | None = None,
        max_delay: float | None = None,
        t1: bool = False,
        anneal_steps: int = 1000,
    ) -> None:
        self.seed, self.mean_delay, self.max_delay, self.t1, self.anneal_steps = (
            seed, mean_delay, max_delay, t1, anneal_steps,
        )  # fmt: skip
        check_anneal_steps(anneal_steps)
        if any(not mean > 0 for mean in self._means() or []):
            raise ConfigError(f"method.mean_delay={mean_delay}: updates above 0")
        if max_delay is not None and not max_delay >= 0:
            raise ConfigError(f"method.max_delay={max_delay}: updates, at least 0")

    def _means(self) -> list[float] | None:
        if self.mean_delay is None or isinstance(self.mean_delay, int | float):
            return None if self.mean_delay is None else [self.mean_delay]
        return list(self.mean_delay)

    def mean(self, context: StageContext) -> float:
        """The mean of a stage's exponential."""
        means = self._means()
        if means is None:
            return forward_delay(context)
        return means[context.stage] if len(means) > 1 else means[0]

    def largest(self, context: StageContext) -> float:
        """The largest x of any stage."""
        if self.max_delay is not None:
            return self.max_delay
        return 4.0 * max(self._means() or [forward_delay(replace(context, stage=0))])

    def delay(self, context: StageContext, minibatch: int) -> int:
        """τ of a minibatch, counted from the start of the run: the conditioned distribution's inverse where it fell."""
        mean, largest = self.mean(context), self.largest(context)
        drawn = key(self.seed, context.stage, minibatch, _PURPOSE) / 2.0**63
        return int(-mean * math.log1p(drawn * math.expm1(-largest / mean)))

    def forward(self, moment: Moment) -> WeightRead:
        """W_{t-τ}, or an older one where the schedule has not made that yet."""
        t = moment.operation.minibatch
        return WeightRead(max(0, min(moment.newest, t - self.delay(moment.context, moment.start + t))))

    def backward(self, moment: Moment, forward: WeightRead) -> WeightRead:
        """The same."""
        return forward

    def recomputation(self, moment: Moment, forward: WeightRead) -> WeightRead:
        """The same."""
        return forward

    def weight_versions(self, context: StageContext) -> int:
        """The largest delay's and the newest."""
        return max(int(self.largest(context)), context.delay) + 1

    def learning_rate_scale(self, context: StageContext, update: int) -> float:
        """T1."""
        return rescheduled(self.mean(context), update, self.anneal_steps) if self.t1 else 1.0

    def check(self, num_stages: int, num_microbatches: int) -> None:
        """One mean for all stages, or one for each."""
        means = self._means()
        if means is not None and len(means) not in (1, num_stages):
            raise ConfigError(
                f"method.mean_delay={means} has {len(means)} means for {num_stages} stages; give one for each stage, "
                "or one for all"
            )


_PURPOSE = 0x6877  # keeps these draws apart from others that are keyed by the same numbers
