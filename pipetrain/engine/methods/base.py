"""The base of all methods, which decide which weights a stage reads and how its learning rate is scaled."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

from pipetrain.engine.program.weight_reads import ReadContext, StageContext, WeightRead
from pipetrain.engine.schedules.base import Family

if TYPE_CHECKING:  # a plan asks methods without waiting for torch
    from torch import Tensor
    from torch.optim import Optimizer

    from pipetrain.engine.weights.statistic import WeightStatistic


class Method:
    """Says with which weights a stage computes. Knows nothing of processes, and of schedules only their family.

    The default reads the newest weights everywhere, one version.

    Attributes:
        name: what the configuration calls it.
        family: of the schedules that it works with.
        needs_prediction: True if it reads weights `Predicted` with the optimizer's next step, for which the optimizer
            may have to keep the last gradients.
        simulated_only: True if it reads what no pipeline of processes could give it.
    """

    name: ClassVar[str]
    family: ClassVar[Family]
    needs_prediction: ClassVar[bool] = False
    simulated_only: ClassVar[bool] = False

    @property
    def independent_replicas(self) -> int:
        """Number of replicas of the whole model that do not wait for each other; 1 if they average gradients."""
        return 1

    @property
    def needs_even_replicas(self) -> bool:
        """True if it compares versions across stages, which needs equal numbers of replicas."""
        return False

    def forward(self, at: ReadContext) -> WeightRead:
        """The weights that F reads."""
        return WeightRead(at.newest)

    def backward(self, at: ReadContext, forward: WeightRead) -> WeightRead:
        """The weights that B reads; `forward` are those that F of the same microbatch read."""
        return WeightRead(at.newest)

    def recomputation(self, at: ReadContext, forward: WeightRead) -> WeightRead:
        """The weights that a recomputation of F reads; by default the weights of B."""
        return self.backward(at, forward)

    def weight_versions(self, context: StageContext) -> int:
        """Largest number of sets of weights that the stage holds at a time, with predictions and corrections."""
        return 1

    def learning_rate_scale(self, context: StageContext, update: int) -> float:
        """Factor of the stage's learning rate at an update, counted from the start of the phase."""
        return 1.0

    def statistic(self, context: StageContext, weights: "Mapping[str, Tensor]") -> "WeightStatistic | None":
        """The running statistic of these weights that the method's transforms read; None without one."""
        return None

    def check(self, num_stages: int, num_microbatches: int) -> None:
        """Checks the settings against the pipeline.

        Raises:
            ConfigError: a setting is wrong for these numbers of stages and microbatches.
        """

    def check_optimizer(self, optimizer: "Optimizer") -> None:
        """Checks the optimizer, before any process starts.

        Raises:
            ConfigError: the method cannot work with it.
        """

    def notes(self, contexts: list[StageContext]) -> list[str]:
        """Lines shown to the user before the run starts: information and warnings."""
        return []
