"""What is asked of a comparison."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from pipetrain.engine.processes import usable_cores
from pipetrain.reporting.comparison.contenders import Contender


@dataclass(frozen=True)
class Request:
    """What is asked of a comparison.

    Attributes:
        target: the metric, or `train_loss`, and its value whose steps are compared; None: the training loss that the
            baseline has after 70 % of its steps.
        baseline: the method that slowdowns are relative to; None: the first one.
        tune: settings to tune and their values, such as `optimizer.lr=0.01,0.03`; the learning rate always is.
        seeds: number of reported seeds, from 0 on.
        tuning_seeds: number of seeds of each trial, from 1000 on.
        minutes: after which runs are stopped; none is started that would end later, as far as is known; None: no limit.
        jobs: number of runs at a time; None: the number of cores divided by the threads of a run.
        began_s: moment, by `time.monotonic`, from which the minutes count.
    """

    target: tuple[str, float] | None = None
    baseline: str | None = None
    tune: Sequence[str] = ()
    seeds: int = 5
    tuning_seeds: int = 2
    minutes: float | None = None
    jobs: int | None = None
    began_s: float = field(default_factory=time.monotonic)

    def jobs_for(self, contenders: Sequence[Contender]) -> int:
        """Number of runs at a time."""
        return self.jobs or max(1, usable_cores() // max(each.cores for each in contenders))
