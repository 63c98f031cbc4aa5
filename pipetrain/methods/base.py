"""What a method is: the answer to which weights a stage reads and how its learning rate is scaled, and nothing else."""

from typing import ClassVar

from torch.optim import Optimizer

from pipetrain.program.weight_reads import Moment, StageContext, WeightRead
from pipetrain.schedules.base import Family


class Method:
    """Says with which weights a stage computes. Knows nothing of processes, and of schedules only their family.

    The default reads the newest weights everywhere, one version.

    Attributes:
        simulated_only: whether it reads what no pipeline of processes could give it.
    """

    name: ClassVar[str]
    family: ClassVar[Family]
    simulated_only: ClassVar[bool] = False

    def forward(self, moment: Moment) -> WeightRead:
        """The weights that F reads."""
        return WeightRead(moment.newest)

    def backward(self, moment: Moment, forward: WeightRead) -> WeightRead:
        """The weights that B reads; `forward` is what F of the same microbatch read."""
        return WeightRead(moment.newest)

    def recomputation(self, moment: Moment, forward: WeightRead) -> WeightRead:
        """The weights that a repetition of F reads: those of B unless the method says otherwise."""
        return self.backward(moment, forward)

    def weight_versions(self, context: StageContext) -> int:
        """The most sets of weights that the stage may hold at one time, predictions and corrections included."""
        return 1

    def learning_rate_scale(self, context: StageContext, update: int) -> float:
        """What the stage's learning rate is multiplied by at an update counted from the start of the phase."""
        return 1.0

    def drift_decay(self, context: StageContext) -> float | None:
        """γ of the running average of weight changes that the stage is to keep; None to keep none."""
        return None

    def check(self, num_stages: int, num_microbatches: int) -> None:
        """Raises ConfigError where a setting is wrong for so many stages and microbatches."""

    def check_optimizer(self, optimizer: Optimizer) -> None:
        """Raises ConfigError where the method cannot work with this optimizer; called before any process starts."""

    def notes(self, places: list[StageContext]) -> list[str]:
        """What the user should know before the run starts, a line each."""
        return []
