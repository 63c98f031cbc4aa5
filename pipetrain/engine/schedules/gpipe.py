"""Fill and drain: all forwards of a minibatch, then all its backwards."""

from dataclasses import dataclass
from typing import ClassVar

from typing_extensions import override

from pipetrain.engine.schedules.alternation import DrainedOneFOneB


@dataclass(frozen=True)
class GPipe(DrainedOneFOneB):
    """F(t,0..N-1), B(t,0..N-1), U(t) (Huang et al. 2019).

    Backwards come in the order of the forwards, so gradients add up alike for all D.
    """

    name: ClassVar[str] = "gpipe"

    @override
    def in_flight(self, r: int, D: int, N: int) -> int:
        """N on every stage."""
        return N
