"""Small images scaled up."""

import torch
from torch import nn

from pipetrain.zoo.models.image_layers import Enlarge, out_of_place, with_enlargement


def test_small_images_are_enlarged_in_their_own_shape():
    enlarge = Enlarge(64)
    assert enlarge(torch.zeros(1, 3, 28, 28)).shape == (1, 3, 64, 64)
    assert enlarge(torch.zeros(1, 3, 32, 48)).shape == (1, 3, 64, 96)
    large = torch.zeros(1, 3, 64, 80)
    assert enlarge(large) is large


def test_first_layer_and_the_whole_model_enlarge_alike():
    model = nn.Sequential(nn.AvgPool2d(2))
    first = with_enlargement(model, model[0], least=8)
    x = torch.randn(1, 1, 4, 4)
    assert first(x).shape == (1, 1, 4, 4)
    assert torch.equal(model(x), first(x))


def test_activations_of_our_models_are_switched_out_of_place():
    dropout = nn.Dropout(inplace=True)
    out_of_place(dropout)
    assert not dropout.inplace
