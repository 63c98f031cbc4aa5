"""What a method is: the answer to which weights a forward and a backward read, and nothing else."""

from typing import ClassVar

from torch.optim import Optimizer

from pipetrain.schedules.base import Family
from pipetrain.schedules.readings import Moment, Read


class Method:
    """Says with which weights a stage computes. Knows nothing of processes, and of schedules only their family.

    The default reads the newest weights twice.
    """

    name: ClassVar[str]
    family: ClassVar[Family]

    def forward(self, moment: Moment) -> Read:
        """The weights that F reads."""
        return Read(moment.newest)

    def backward(self, moment: Moment, forward: Read) -> Read:
        """The weights that B reads; `forward` is what F of the same microbatch read."""
        return Read(moment.newest)

    def check_optimizer(self, optimizer: Optimizer) -> None:
        """Raises ConfigError where the method cannot work with this optimizer; called before any process starts."""
