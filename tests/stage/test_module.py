"""The module of a stage computes with the weights that it is lent, and puts its own back."""

import pytest
import torch
from support.pipelines import newest, stage_of, unit_gradients
from torch import nn

from pipetrain.program.planned_operations import Activations
from pipetrain.program.weight_reads import WeightRead


def test_parameters_of_the_module_are_put_back_after_a_forward_that_fails():
    stage = stage_of(nn.Linear(3, 3), index=1)
    own = stage.module.layers[0].weight
    with pytest.raises(RuntimeError):
        stage.forward((0, 0), (torch.ones(2, 5),), newest(stage), Activations.REBOUND, store=False)
    assert stage.module.layers[0].weight is own


@pytest.mark.parametrize("keep", [False, True])
def test_module_computes_with_the_newest_weights_between_operations(keep):
    stage, x = stage_of(nn.Linear(3, 3, bias=False), index=1), torch.ones(2, 3)
    stage.forward((0, 0), (x,), WeightRead(0), Activations.KEPT, store=False)  # its leaves stay in the module
    stage.update(9, unit_gradients(stage), keep=keep, steady=True)
    (weight,) = stage.optimizer.parameters.values()
    torch.testing.assert_close(stage.evaluate((x,))[0], (x @ weight.T).detach())
    (saved,) = stage.state().values()
    assert saved.data_ptr() == weight.data_ptr()
