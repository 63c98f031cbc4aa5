"""Records of executed operation lists, and the names of what is measured beside them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from pipetrain.engine.program.drain_interval import DrainInterval
from pipetrain.engine.program.planned_operations import PlannedOperation
from pipetrain.engine.program.times import TimeSpan, Wait


@dataclass(frozen=True)
class TracedList:
    """A worker's executed list.

    Attributes:
        worker: without replicas its stage.
        planned: the list.
        start: minibatches of the run before the list.
        base: the version that the list calls 0.
        spans: the time of each operation.
        waits: times of sending or waiting for messages.
        replicas: number of workers of its stage.
    """

    worker: int
    planned: Sequence[PlannedOperation]
    start: int
    base: int
    spans: Sequence[TimeSpan]
    waits: Sequence[Wait] = ()
    replicas: int = 1


class Trace(Protocol):
    """The trace of a run, or of the stages of one of its processes."""

    def add(self, interval: DrainInterval, lists: Sequence[TracedList], drained_at: float = 0.0) -> None:
        """Records the lists of an interval.

        `drained_at` is when the drain at its end was over, at once in all processes, by this machine's clock.
        """


DISTANCES = ("weight_drift", "forward_error", "backward_error", "weight_discrepancy")
"""Norms of W_F - W_B, Ŵ_F - W_B, Ŵ_B - W_B and Ŵ_F - Ŵ_B: see `StalenessMeter`."""
RELATIVE = "relative_"
"""Prefix of a distance divided by the norm of W_B."""
COSINE = "gradient_cosine"
"""Cosine between the gradient applied and the gradient at the weights that it updates."""
QUANTITIES = (
    *DISTANCES,
    *(f"{RELATIVE}{name}" for name in DISTANCES),
    "weight_norm",
    "gradient_norm",
    "update_norm",
    COSINE,
)
"""All that `StalenessMeter` measures of a stage. The norms are of W_B, of the gradient applied, and of its update."""
