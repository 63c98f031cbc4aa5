"""PipeOptim: which optimizers it takes."""

import pytest
import torch
from support.moments import groups_of_two, parameters

from pipetrain.engine.errors import ConfigError
from pipetrain.engine.methods.pipeoptim import PipeOptim


@pytest.mark.parametrize(
    "optimizer",
    [
        torch.optim.SGD(parameters(), lr=0.1),
        torch.optim.SGD(parameters(), lr=0.1, momentum=0.9),
        torch.optim.Adam(parameters()),
        torch.optim.AdamW(parameters()),
        torch.optim.SGD(parameters(), lr=0.1, momentum=0.9, nesterov=True),
        torch.optim.NAdam(parameters()),
        torch.optim.RMSprop(parameters(), momentum=0.9, centered=True),
        torch.optim.Adagrad(parameters()),
    ],
)
def test_pipeoptim_takes_optimizers_that_have_a_prediction_rule(optimizer):
    PipeOptim().check_optimizer(optimizer)


@pytest.mark.parametrize(
    ("optimizer", "named"),
    [
        (torch.optim.Rprop(parameters()), "Rprop"),
        (torch.optim.Adamax(parameters()), "Adamax"),
        (torch.optim.Adadelta(parameters()), "Adadelta"),
        (torch.optim.Adam(parameters(), amsgrad=True), "amsgrad"),
        (torch.optim.AdamW(parameters(), amsgrad=True), "amsgrad"),
        (torch.optim.SGD(parameters(), lr=0.1, maximize=True), "maximize"),
        (torch.optim.Adam(groups_of_two(amsgrad=True)), "optimizer.groups: amsgrad=true"),
    ],
)
def test_pipeoptim_refuses_others_naming_those_that_have_a_rule(optimizer, named):
    with pytest.raises(ConfigError) as caught:
        PipeOptim().check_optimizer(optimizer)
    message = str(caught.value)
    assert all(word in message for word in (named, "SGD", "Adam", "AdamW", "NAdam", "RMSprop", "Adagrad"))
    assert "\n" not in message
