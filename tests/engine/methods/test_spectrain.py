"""SpecTrain: how far it predicts, and which optimizers it takes."""

from dataclasses import replace

import pytest
import torch
from support.moments import CONTEXT, LATER, MOMENT, parameters

from pipetrain.engine.methods.spectrain import SpecTrain
from pipetrain.engine.program.weight_reads import WeightRead
from pipetrain.engine.weights.transforms import Predicted


@pytest.mark.parametrize(("stage", "ahead"), [(0, 0), (1, 0), (2, 1), (3, 1), (4, 2), (7, 3)])
def test_spectrain_predicts_half_the_stage_beyond_pipeoptim(stage, ahead):
    context = replace(CONTEXT, stage=stage, num_stages=8)
    there, back = replace(MOMENT, context=context), replace(LATER, context=context)
    assert SpecTrain().forward(there) == WeightRead(2, Predicted(ahead + 2))
    assert SpecTrain().backward(back, WeightRead(2)) == WeightRead(4, Predicted(ahead) if ahead else None)
    assert SpecTrain().recomputation(back, WeightRead(2)) == SpecTrain().backward(back, WeightRead(2))


def test_spectrain_takes_momentum_whatever_its_size():
    SpecTrain().check_optimizer(torch.optim.SGD(parameters(), lr=0.1, momentum=0.5, weight_decay=0.1))
