"""Stages on several devices each, which take the minibatches in turn and average their gradients."""

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Replication:
    """How the devices of each stage work together: minibatch t goes to replica t mod m (PipeDream § 3.2).

    Attributes:
        replicas: m, by stage.
        averaging: the time in which a stage's replicas average their gradients before an update, by stage.
        overlapped: whether that begins with the backwards that the update waits for, and not after them.
    """

    replicas: Sequence[int]
    averaging: Sequence[float]
    overlapped: bool = False

    @classmethod
    def none(cls, num_stages: int) -> "Replication":
        """One device for each stage."""
        return cls([1] * num_stages, [0.0] * num_stages)

    @property
    def turn(self) -> int:
        """After so many minibatches all stages have taken whole rounds."""
        return math.lcm(*self.replicas)
