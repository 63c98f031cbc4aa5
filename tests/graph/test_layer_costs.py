import random

import pytest
import torch
from support.refusals import assert_refused
from torch import nn

from pipetrain.engine.models.chain import LayerChain
from pipetrain.graph.conversion import chain_of
from pipetrain.graph.layer_costs import BYTES_PER_SECOND, FLOPS_PER_SECOND, layer_costs
from pipetrain.zoo.models import resnet_cifar, small_images, torchvision_models


def test_estimate_of_a_linear_layer_is_that_by_hand():
    first, second = layer_costs(chain_of(nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2))), [torch.zeros(3, 4)])
    assert (first.label, first.parameters) == ("0:Linear", 40)
    # Forward, and the weight's gradient; the data needs none.
    assert first.flops == 2 * (2 * 3 * 4 * 8)
    assert second.flops == 3 * (2 * 3 * 8 * 2)
    assert first.output_bytes == 4 * 3 * 8
    assert first.memory_bytes == 4 * (2 * 40 + 3 * 8)
    assert first.cost == first.flops / FLOPS_PER_SECOND + first.bytes_moved / BYTES_PER_SECOND


def test_frozen_weights_have_no_gradients_and_no_updates():
    frozen = nn.Linear(4, 8).requires_grad_(requires_grad=False)
    first, second = layer_costs(chain_of(nn.Sequential(frozen, nn.Linear(8, 2))), [torch.zeros(3, 4)])
    assert (first.weight_bytes, first.trainable_bytes, first.memory_bytes) == (160, 0, 160 + 4 * 3 * 8)
    assert first.at(3) == first.cost
    assert second.at(3) > second.cost


def test_estimate_of_memory_traffic_leaves_out_views():
    view, copied = layer_costs(chain_of(nn.Sequential(nn.Flatten(), nn.ReLU())), [torch.zeros(2, 3, 4)])
    assert (view.flops, view.bytes_moved, view.memory_bytes) == (0, 0, 0)
    # Forward reads and writes 24 floats; backward reads the gradient and the output, and writes a gradient.
    assert copied.bytes_moved == 4 * 24 * (2 + 3)


def test_both_tensors_leaving_a_layer_in_a_block_are_counted():
    costs = layer_costs(resnet_cifar.build(8, 3, 10), [torch.zeros(2, 3, 32, 32)])
    assert costs[1].output_bytes == 2 * 4 * 2 * 16 * 32 * 32


def test_flops_of_resnet18_are_the_published_ones():
    costs = layer_costs(torchvision_models.resnet(18, 3, 1000), [torch.zeros(2, 3, 224, 224)])
    forward_and_backward = sum(cost.flops for cost in costs) / 2
    # 1.814 G multiply-adds, three times less the input gradient of the first layer's 0.118 G.
    assert forward_and_backward == pytest.approx(2 * (3 * 1.814e9 - 0.118e9), rel=0.001)


def test_estimate_leaves_the_model_and_the_random_numbers_alone():
    model = nn.Sequential(*small_images.lenet5(1, 10, (28, 28)).layers, nn.BatchNorm1d(10), nn.Dropout())
    chain = chain_of(model)
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    tensors = {name: id(value) for name, value in model.state_dict(keep_vars=True).items()}
    random = torch.get_rng_state()
    costs = layer_costs(chain, [torch.ones(4, 1, 28, 28)])
    assert torch.equal(torch.get_rng_state(), random)
    assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())
    assert {name: id(value) for name, value in model.state_dict(keep_vars=True).items()} == tensors
    assert all(weight.grad is None for weight in model.parameters())
    assert costs == layer_costs(chain, [torch.zeros(4, 1, 28, 28)])


class BranchesOnValues(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x):
        return self.norm(x) if x.abs().sum() > 0 else torch.rand_like(x)


class SometimesSkipped(nn.Linear):
    def forward(self, x):
        return x if random.random() < 0.5 or torch.rand(()).item() < 0.5 else super().forward(x)


class Skipped(nn.Linear):
    def forward(self, x):
        return x if random.random() < 0.5 else super().forward(x)


@pytest.mark.parametrize("layer", [Skipped, SometimesSkipped])
def test_layers_that_draw_random_numbers_have_one_estimate(layer):
    chain, drawn = chain_of(nn.Sequential(*(layer(4, 4) for _ in range(8)))), random.getstate()
    first = layer_costs(chain, [torch.zeros(3, 4)])
    assert random.getstate() == drawn
    for number in range(4):
        random.seed(number)
        torch.manual_seed(number)
        assert layer_costs(chain, [torch.zeros(3, 4)]) == first


def test_model_that_needs_real_data_is_run_on_a_copy():
    model = nn.Sequential(nn.Linear(4, 4), BranchesOnValues(), nn.Dropout())
    random = torch.get_rng_state()
    costs = layer_costs(chain_of(model), [torch.ones(3, 4)])
    assert costs[1].flops == 0
    assert costs[1].bytes_moved > 0
    assert not model[1].norm.running_mean.any()
    assert torch.equal(torch.get_rng_state(), random)


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = torch.ones(4)  # a plain attribute: neither parameter nor buffer

    def forward(self, x):
        return x * self.scale


def test_estimate_takes_layers_with_plain_tensor_attributes():
    chain = chain_of(nn.Sequential(Scaled()))
    assert layer_costs(chain, [torch.ones(3, 4)])[0].bytes_moved == 4 * (12 + 4 + 12)
    assert chain.layers[0].scale.device.type == "cpu"


def test_estimate_accepts_integer_embedding_with_shared_weight():
    embedding, decoder = nn.Embedding(7, 4), nn.Linear(4, 7, bias=False)
    decoder.weight = embedding.weight
    model = nn.ModuleList([embedding, decoder])
    costs = layer_costs(LayerChain(model, [embedding, decoder]), [torch.zeros(2, 5, dtype=torch.long)])
    assert costs[1].output_bytes == 4 * 2 * 5 * 7
    assert [cost.parameters for cost in costs] == [28, 28]


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ([nn.Linear(4, 4), nn.Linear(5, 4)], r"layer 1 \(1:Linear\) .* shape \(2, 4\): .*2x4 and 5x4"),
        ([nn.LSTM(4, 4)], r"layer 0 \(0:LSTM\) .* returned \(Tensor, tuple\)"),
    ],
)
def test_estimate_names_a_layer_that_does_not_run(layers, message):
    assert_refused(message, layer_costs, chain_of(nn.Sequential(*layers)), [torch.zeros(2, 4)])


class Recurrent(nn.Module):
    """An LSTM that needs real data if it looks at them, and so runs in one operator on a CPU."""

    def __init__(self, *, looks):
        super().__init__()
        self.lstm = nn.LSTM(8, 16, batch_first=True, bidirectional=True)
        self.looks = looks

    def forward(self, inputs):
        if self.looks and inputs.isnan().any():
            raise ValueError
        return self.lstm(inputs)[0]


def test_lstm_costs_the_same_as_one_or_many_operators():
    def flops(*, looks):
        chain = chain_of(nn.Sequential(nn.Linear(8, 8), Recurrent(looks=looks)))
        return layer_costs(chain, [torch.zeros(3, 5, 8)])[1].flops

    gates, positions, samples = 2 * 4 * 16 * (8 + 16), 5, 3  # of both directions
    assert flops(looks=True) == 3 * 2 * positions * samples * gates
    # one operator also computes the gradient of the first hidden states, which nothing needs
    assert flops(looks=True) - flops(looks=False) == 2 * samples * (2 * 4 * 16 * 16)
