import torch
from torch import nn

from pipetrain.models.chain import chain_of
from pipetrain.reproduce.activation_count import count

MIB = 2**20


def test_outputs_of_all_modules_count_twice_and_belong_to_the_weight_layer_before_them():
    with torch.device("meta"):
        chain = chain_of(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)))
    found = count(chain, (4,))
    assert [size * MIB for size in found.by_layer] == [0, 2 * 4 * (8 + 8), 2 * 4 * 2]
    assert found.weights * MIB == 4 * (4 * 8 + 8 + 8 * 2 + 2)
    assert found.increase(1, 10, copies=2) == (found.before(1) * 10 + 2 * found.weights) / (
        found.activations * 10 + found.weights
    )
