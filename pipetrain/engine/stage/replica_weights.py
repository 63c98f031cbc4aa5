"""The interface of replicas that train alone to the engine; `pipetrain.zoo.weight_averaging` implements it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from torch import Tensor

if TYPE_CHECKING:
    from pipetrain.engine.stage.stage import Stage


Gathered = Callable[[], list[Tensor] | None]
"""Returns a tensor of each replica, in the order of the replicas, only to be read.

In one process None while another replica has yet to give its own; between processes, waits for it.
"""


class Exchange(Protocol):
    """Passes tensors among the replicas of a stage: the n-th of each belong together, and have one size and type."""

    def begin(self, own: Tensor) -> Gathered:
        """Gives the next tensor of this replica, in one dimension, which may not change any more; does not wait."""


class Averaging(Protocol):
    """Averages the weights of replicas that train alone."""

    @property
    def delay(self) -> int:
        """Number of updates after which an average has to be there."""

    def of_stage(self, stage: Stage, exchange: Exchange) -> ReplicaWeights:
        """The part of one replica of a stage, which passes tensors to the others through `exchange`."""


class ReplicaWeights(Protocol):
    """Averages the weights of a replica of a stage with those of its other replicas."""

    def updated(self) -> None:
        """Gives what is to be averaged after an update; does not wait."""

    def bring_in(self) -> bool:
        """Brings the averages that are due into the newest weights, before anything reads these.

        In one process False while another replica has yet to give its part; between processes, waits for it.
        """

    def mean(self) -> Iterator[None]:
        """Sets the stage's averages, which evaluations read, and its buffers to the mean over the replicas at a drain.

        Yields where other replicas in this process have to come to the same point first.
        """

    def state(self) -> Mapping[str, Mapping[str, Tensor]]:
        """Local name of a weight -> name -> tensor of its state at a drain."""

    def load_state(self, saved: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Restores the output of `state`.

        Raises:
            ConfigError: it is of a rule that does not go on as this one.
        """

    def report(self) -> Mapping[str, Any]:
        """Measurements by name; may wait for the device."""
