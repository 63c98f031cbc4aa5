"""Methods whose forward and backward read one old version of a stage's weights, whatever the schedule."""

from abc import abstractmethod
from collections.abc import Sequence

from typing_extensions import override

from pipetrain.engine.errors import ConfigError
from pipetrain.engine.methods.base import Method
from pipetrain.engine.program.weight_reads import ReadContext, WeightRead


class ReadsOldVersion(Method):
    """F, its recomputation and B read W_{t-τ}, or an older version where the schedule has not made that yet."""

    @abstractmethod
    def age(self, at: ReadContext) -> int:
        """τ of a minibatch on a stage."""

    @override
    def forward(self, at: ReadContext) -> WeightRead:
        return WeightRead(max(0, min(at.newest, at.update - self.age(at))))

    @override
    def backward(self, at: ReadContext, forward: WeightRead) -> WeightRead:
        return forward


def check_one_or_each(setting: str, values: Sequence[float], what: str, num_stages: int) -> None:
    """Checks that there is one value for all stages, or one for each.

    Raises:
        ConfigError: there are fewer or more; `what` names the values.
    """
    if len(values) not in (1, num_stages):
        raise ConfigError(
            f"{setting}={list(values)} has {len(values)} {what} for {num_stages} stages; give one for each stage, or "
            "one for all"
        )
