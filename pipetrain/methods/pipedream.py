"""Weight stashing: B reads the very version that F read (PipeDream § 3.3)."""

from dataclasses import dataclass
from typing import ClassVar

from pipetrain.methods.base import Method
from pipetrain.schedules.base import Family
from pipetrain.schedules.readings import Moment, Read


@dataclass(frozen=True)
class PipeDream(Method):
    """F reads the newest weights, B those that F read; up to D versions on stage 0.

    Attributes:
        vertical_sync: every stage reads the version that stage 0 read for the microbatch.
    """

    name: ClassVar[str] = "pipedream"
    family: ClassVar[Family] = Family.CONTINUOUS
    vertical_sync: bool = False

    def forward(self, moment: Moment) -> Read:
        """W_now, or with vertical sync the version that was stage 0's newest when the microbatch entered."""
        return Read(moment.entry if self.vertical_sync else moment.newest)

    def backward(self, moment: Moment, forward: Read) -> Read:
        """The stashed version."""
        return forward
