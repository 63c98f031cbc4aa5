"""A chosen delay, as from a pipeline of any depth: every stage reads weights of a fixed age."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from typing_extensions import override

from pipetrain.engine.errors import ConfigError, is_whole
from pipetrain.engine.methods._old_versions import ReadsOldVersion, check_one_or_each
from pipetrain.engine.program.weight_reads import ReadContext, StageContext
from pipetrain.engine.schedules.base import Family


@dataclass(frozen=True)
class Delayed(ReadsOldVersion):
    """F and B read W_{t-τ}; the first τ minibatches after a drain read the weights that it left.

    Attributes:
        delay: τ in updates, for all stages or one for each.
        delays: `delay` as a tuple of one, or of one for each stage.
    """

    name: ClassVar[str] = "delayed"
    family: ClassVar[Family] = Family.CONTINUOUS
    delay: int | Sequence[int] = 1
    delays: tuple[int, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        delays = tuple(self.delay) if isinstance(self.delay, list | tuple) else (self.delay,)
        if not delays or any(not is_whole(delay) or delay < 0 for delay in delays):
            raise ConfigError(
                f"method.delay={self.delay}: must be whole numbers of updates of at least 0, such as 3 or [3,2,1,0]"
            )
        object.__setattr__(self, "delays", delays)

    @override
    def age(self, at: ReadContext) -> int:
        return self._delay_of(at.context)

    def _delay_of(self, context: StageContext) -> int:
        return self.delays[min(context.stage, len(self.delays) - 1)]  # a plan may be tried with more stages

    @override
    def weight_versions(self, context: StageContext) -> int:
        return max(self._delay_of(context), context.delay) + 1

    @override
    def check(self, num_stages: int, num_microbatches: int) -> None:
        check_one_or_each("method.delay", self.delays, "delays", num_stages)
