"""What a method is: the answer to which weights a stage reads and how its learning rate is scaled, and nothing else."""

from collections.abc import Mapping
from typing import ClassVar

from torch import Tensor
from torch.optim import Optimizer

from pipetrain.program.weight_reads import ReadContext, StageContext, WeightRead
from pipetrain.schedules.base import Family
from pipetrain.weights.statistic import WeightStatistic


class Method:
    """Says with which weights a stage computes. Knows nothing of processes, and of schedules only their family.

    The default reads the newest weights everywhere, one version.

    Attributes:
        name: what the configuration calls it.
        family: of the schedules that it goes with.
        needs_prediction: whether it reads weights `Predicted` with the optimizer's next step, for which the optimizer
            may have to keep the last gradients.
        simulated_only: whether it reads what no pipeline of processes could give it.
    """

    name: ClassVar[str]
    family: ClassVar[Family]
    needs_prediction: ClassVar[bool] = False
    simulated_only: ClassVar[bool] = False

    @property
    def independent_replicas(self) -> int:
        """Replicas of the whole model that do not wait for each other; 1: those of a stage average their gradients."""
        return 1

    @property
    def needs_even_replicas(self) -> bool:
        """Whether it compares versions of different stages, the same only where all stages have as many replicas."""
        return False

    def forward(self, at: ReadContext) -> WeightRead:
        """The weights that F reads."""
        return WeightRead(at.newest)

    def backward(self, at: ReadContext, forward: WeightRead) -> WeightRead:
        """The weights that B reads; `forward` is what F of the same microbatch read."""
        return WeightRead(at.newest)

    def recomputation(self, at: ReadContext, forward: WeightRead) -> WeightRead:
        """The weights that a repetition of F reads: those of B unless the method says otherwise."""
        return self.backward(at, forward)

    def weight_versions(self, context: StageContext) -> int:
        """The most sets of weights that the stage may hold at one time, predictions and corrections included."""
        return 1

    def learning_rate_scale(self, context: StageContext, update: int) -> float:
        """What the stage's learning rate is multiplied by at an update counted from the start of the phase."""
        return 1.0

    def statistic(self, context: StageContext, weights: Mapping[str, Tensor]) -> WeightStatistic | None:
        """A new running statistic of these weights, which the method's transforms find in the stage; None for none."""
        return None

    def check(self, num_stages: int, num_microbatches: int) -> None:
        """Checks the settings against the pipeline.

        Raises:
            ConfigError: a setting is wrong for so many stages and microbatches.
        """

    def check_optimizer(self, optimizer: Optimizer) -> None:
        """Checks the optimizer, before any process starts.

        Raises:
            ConfigError: the method cannot work with it.
        """

    def notes(self, contexts: list[StageContext]) -> list[str]:
        """What the user should know before the run starts, a line each."""
        return []
