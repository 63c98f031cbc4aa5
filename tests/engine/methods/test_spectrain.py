"""SpecTrain: how far it predicts, and which optimizers it takes."""

import torch
from support.moments import parameters

from pipetrain.engine.methods.spectrain import SpecTrain


def test_spectrain_takes_momentum_whatever_its_size():
    SpecTrain().check_optimizer(torch.optim.SGD(parameters(), lr=0.1, momentum=0.5, weight_decay=0.1))
