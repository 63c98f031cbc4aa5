"""Cost of a replicated stage and traffic of a cut: as on real machines, and as PipeDream prints it."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from typing_extensions import override

from pipetrain.config.schema import PlannerConfig
from pipetrain.errors import ConfigError
from pipetrain.planner.profile.antichains import AntichainStates, Vector

Amount = TypeVar("Amount", float, np.ndarray[Any, np.dtype[np.float64]])
"""A value of one stage, or a vector of the values of many stages."""


class CostModel(ABC):
    """Seconds for each minibatch.

    Attributes:
        overlap: True if replicas average their gradients while they compute.
    """

    overlap: bool

    @abstractmethod
    def replicated(self, time_s: Amount, weight_bytes: Amount, replicas: int, bytes_per_s: float) -> Amount:
        """Seconds per minibatch of a stage whose replicas take minibatches in turn.

        Args:
            time_s: of one replica that takes every minibatch.
            weight_bytes: what replicas keep equal.
            replicas: how many.
            bytes_per_s: between two of them.
        """

    @abstractmethod
    def cut_bytes(self, states: AntichainStates) -> Vector:
        """Bytes that the cut at each state sends in one direction."""

    def link_s(self, states: AntichainStates, bytes_per_s: float) -> Vector:
        """Seconds of the link at each state, which carries activations forward and their gradients back."""
        return 2 * self.cut_bytes(states) / bytes_per_s


@dataclass(frozen=True)
class PipeDreamPaper(CostModel):
    """The recurrence as printed: T = max(A, 2(m - 1) Σ|w| / B) / m (PipeDream § 3.1)."""

    overlap = True

    @override
    def replicated(self, time_s: Amount, weight_bytes: Amount, replicas: int, bytes_per_s: float) -> Amount:
        slower: Amount = np.maximum(time_s, 2 * (replicas - 1) * weight_bytes / bytes_per_s)
        return slower / replicas

    @override
    def cut_bytes(self, states: AntichainStates) -> Vector:
        return states.antichain_bytes


@dataclass(frozen=True)
class RingAllReduce(CostModel):
    """Each replica sends 2(m - 1)/m Σ|w| once for m minibatches, as the text of PipeDream § 3.1 says.

    Attributes:
        overlap: True if gradients are averaged while a stage computes.
    """

    overlap: bool = True

    @override
    def replicated(self, time_s: Amount, weight_bytes: Amount, replicas: int, bytes_per_s: float) -> Amount:
        exchange = 2 * (replicas - 1) / replicas * weight_bytes / bytes_per_s
        both: Amount = np.maximum(time_s, exchange) if self.overlap else time_s + exchange
        return both / replicas

    @override
    def cut_bytes(self, states: AntichainStates) -> Vector:
        return states.sent_bytes


def cost_model(settings: PlannerConfig) -> CostModel:
    """The cost model of the section `planner`.

    Raises:
        ConfigError: it says of another one how that overlaps.
    """
    if settings.cost_model == "pipedream_paper" and not settings.overlap:
        raise ConfigError(
            "planner.overlap=false: planner.cost_model=pipedream_paper is the recurrence as printed, which overlaps; "
            "planner.cost_model=ring_allreduce takes both"
        )
    return PipeDreamPaper() if settings.cost_model == "pipedream_paper" else RingAllReduce(settings.overlap)
