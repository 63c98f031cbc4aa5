"""Makes the optimizers of a pipeline's stages."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import nn
from torch.optim import Optimizer

from pipetrain.engine.optim.stage_optimizer import Rate, StageOptimizer


@dataclass(frozen=True)
class OptimizerFactory:
    """The optimizer of each stage: torch's, its learning rate, and options that may differ between stages.

    Attributes:
        build: a stage's parameters, or torch's parameter groups of them -> its optimizer, one of torch's.
        rate: learning rate of each update, counted from the start of the run.
        groups: a stage's parameters by name in the whole model -> what `build` is called with.
        options_of_stage: index of a stage -> options of its optimizer, which `build` takes by name.
        error_feedback: strength of the correction of updates; None for none.
        average_decay: of the average of weights that evaluations read; None for no average.
    """

    build: Callable[..., Optimizer]
    rate: Rate
    groups: Callable[[Mapping[str, nn.Parameter]], list[Any]] = lambda parameters: list(parameters.values())
    options_of_stage: Callable[[int], Mapping[str, Any]] = lambda _stage: {}
    error_feedback: float | None = None
    average_decay: float | None = None

    def of_stage(
        self, stage: int, parameters: Mapping[str, nn.Parameter], full_names: Mapping[str, str]
    ) -> StageOptimizer:
        """The optimizer of a stage, given its trainable parameters by local name.

        `full_names` maps these names to those in the whole model.
        """
        build = partial(self.build, **self.options_of_stage(stage))
        groups = self.groups({full_names[name]: parameter for name, parameter in parameters.items()})
        return StageOptimizer(build, parameters, self.rate, groups, self.error_feedback)
