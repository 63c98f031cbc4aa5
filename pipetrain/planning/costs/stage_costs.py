"""Cost of a replicated stage and traffic of a cut: as on real machines, and as PipeDream prints it."""

from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from pipetrain.engine.errors import ConfigError
from pipetrain.planning.profile.antichains import AntichainStates, Vector
from pipetrain.runner.config.schema import PlannerConfig

Amount = TypeVar("Amount", float, np.ndarray[Any, np.dtype[np.float64]])
"""A value of one stage, or a vector of the values of many stages."""


@dataclass(frozen=True)
class CostModel:
    """Seconds per minibatch of replicas and links (PipeDream § 3.1).

    Each of m replicas sends 2(m - 1)/m Σ|w| once for m minibatches, as the text says. The recurrence as printed is
    T = max(A, 2(m - 1) Σ|w| / B) / m.

    Attributes:
        overlap: True if replicas average their gradients while they compute.
        as_printed: True for the recurrence as printed.
    """

    overlap: bool = True
    as_printed: bool = False

    @classmethod
    def of(cls, settings: PlannerConfig) -> "CostModel":
        """The cost model of the section `planner`.

        Raises:
            ConfigError: the printed recurrence is to be without overlap.
        """
        as_printed = settings.cost_model == "pipedream_paper"
        if as_printed and not settings.overlap:
            raise ConfigError(
                "planner.overlap=false: planner.cost_model=pipedream_paper is the recurrence as printed, which "
                "overlaps; planner.cost_model=ring_allreduce supports both"
            )
        return cls(settings.overlap, as_printed)

    def replicated(self, time_s: Amount, weight_bytes: Amount, replicas: int, bytes_per_s: float) -> Amount:
        """Seconds per minibatch of a stage whose replicas take minibatches in turn.

        Args:
            time_s: of one replica that takes every minibatch.
            weight_bytes: of the weights that replicas keep equal.
            replicas: m.
            bytes_per_s: B, between two of them.
        """
        share = 1 if self.as_printed else replicas
        exchange = 2 * (replicas - 1) / share * weight_bytes / bytes_per_s
        both: Amount = np.maximum(time_s, exchange) if self.overlap else time_s + exchange
        return both / replicas

    def link_s(self, states: AntichainStates, bytes_per_s: float) -> Vector:
        """Seconds of the link at each state, which carries activations forward and their gradients back."""
        return (states.antichain_bytes if self.as_printed else states.link_bytes) / bytes_per_s
