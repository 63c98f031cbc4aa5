"""A stage of single weights, for pipelines of very many stages."""

import math
from collections.abc import Mapping

from torch import Tensor, nn
from typing_extensions import override

from pipetrain.methods import Method
from pipetrain.program.weight_reads import StageContext
from pipetrain.stage.base import BaseStage, Training
from pipetrain.stage.module import StageModule
from pipetrain.stage.recurrent_state import RecurrentState


class ParameterStage(BaseStage):
    """A stage of single weights: their versions and optimizer. The whole model computes with them.

    `names` maps local names of its parameters and buffers to full names; `module` is the whole model.
    """

    def __init__(self, index: int, names: Mapping[str, str], module: StageModule, training: Training) -> None:
        # most stages of a deep pipeline are empty, and need not look through the whole model
        held = module if names else nn.Module()
        parameters = {name: parameter for name, parameter in held.named_parameters() if name in names}
        super().__init__(index, parameters, training)
        self.full_names = dict(names)
        # one stage answers for what the whole model carries
        self.carried = module.carried if index == 0 else RecurrentState({})
        self._buffers = {name: buffer for name, buffer in held.named_buffers() if name in names}

    @override
    def enter(self, method: Method, context: StageContext, start: int, *, fresh: bool, predicts: bool) -> None:
        """Enters a phase; allows any number of versions, as the simulation keeps more than a pipeline would."""
        super().enter(method, context, start, fresh=fresh, predicts=predicts)
        self.versions_allowed = math.inf

    @override
    def state(self) -> dict[str, Tensor]:
        tensors = {**self.weights.newest.tensors, **self._buffers}
        return {self.full_names[local]: tensor for local, tensor in tensors.items()}
