import itertools
import time

import pytest
import torch
from support import small_model
from torch import nn

from pipetrain.engine.arithmetic import ComputeOptions
from pipetrain.engine.errors import ConfigError
from pipetrain.engine.losses import CrossEntropy
from pipetrain.engine.models.chain import LayerChain
from pipetrain.graph.conversion import chain_of
from pipetrain.planning.profiling import layer_times
from pipetrain.planning.profiling.layer_times import WARM_UPS, Measuring, measured_model

FLOAT, LONG = 4, 8
LABELS = (torch.tensor([0, 1, 1, 0]),)


def measured(chain, inputs, targets=LABELS, loss=None, **how):
    tensors = (inputs,) if isinstance(inputs, torch.Tensor) else inputs
    return measured_model(chain, (tensors, targets), Measuring(loss or CrossEntropy(), repeats=1, **how)).layers


class Slow(torch.autograd.Function):
    """Takes its time, forward and backward."""

    @staticmethod
    def forward(ctx, x, seconds):
        ctx.seconds = seconds
        time.sleep(seconds[0])
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        time.sleep(ctx.seconds[1])
        return gradient, None


class Sleeper(nn.Module):
    def __init__(self, *seconds):
        super().__init__()
        self.seconds = seconds

    def forward(self, x):
        return Slow.apply(x, self.seconds)


def test_forward_and_backward_times_go_to_their_layers():
    layers = [nn.Linear(3, 2), Sleeper(0.02, 0.08), Sleeper(0.05, 0.0)]
    first, second, third = measured(chain_of(nn.Sequential(*layers)), torch.ones(4, 3))
    assert second.forward_s >= 0.02
    assert second.backward_s >= 0.08
    assert third.forward_s >= 0.05
    assert [layer.label for layer in (first, second, third)] == ["0:Linear", "1:Sleeper", "2:Sleeper"]


class SleepsForWeights(nn.Module):
    """Takes its time where its weight has a gradient."""

    def __init__(self, seconds):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))
        self.seconds = seconds

    def forward(self, x):
        return x * (Slow.apply(self.weight, (0.0, self.seconds)) if self.weight.requires_grad else self.weight)


def test_gradients_of_weights_are_timed_apart_where_backwards_are_split():
    model = nn.Sequential(nn.Linear(3, 2), Sleeper(0.0, 0.05), SleepsForWeights(0.1))
    first, second, third = measured(chain_of(model), torch.ones(4, 3), splits=True)
    assert third.weight_gradient_s == pytest.approx(0.1, abs=0.03)
    assert third.backward_s >= 0.1
    assert second.weight_gradient_s < 0.03
    assert first.weight_gradient_s == pytest.approx(first.backward_s, abs=0.01)  # data needs no gradient
    assert all(weight.requires_grad for weight in model.parameters())
    assert measured(chain_of(model), torch.ones(4, 3))[0].weight_gradient_s is None


def test_split_backward_keeps_inputs_and_gradients_of_layers_with_weights():
    block = nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 2))
    frozen = nn.Linear(2, 2).requires_grad_(requires_grad=False)
    layers = measured(chain_of(nn.Sequential(block, nn.LayerNorm(2), frozen)), torch.ones(4, 3))
    assert [layer.put_aside for layer in layers] == [4 * (3 + 5 + 5 + 2) * FLOAT, 0, 0]


def test_the_last_layer_has_the_loss():
    def slow_loss(output, target):
        return nn.functional.cross_entropy(Slow.apply(output, (0.03, 0.06)), target)

    first, last = measured(chain_of(nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2))), torch.ones(4, 3), loss=slow_loss)
    assert last.forward_s >= 0.03
    assert last.backward_s >= 0.06
    assert first.weight_bytes == FLOAT * 12


def test_shared_kept_memory_counts_once_and_weights_never():
    chain = chain_of(nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2)))
    first, relu, last = measured(chain, torch.ones(4, 3))
    # The first linear layer keeps the data, ReLU its output, which is also all that the last one keeps of its own
    # inputs; the loss keeps its labels, probabilities, and a number for their weight.
    assert (first.output_bytes, first.weight_bytes, first.activation_bytes) == (FLOAT * 32, FLOAT * 32, FLOAT * 12)
    assert (relu.output_bytes, relu.weight_bytes, relu.activation_bytes) == (FLOAT * 32, 0, FLOAT * 32)
    assert (last.output_bytes, last.weight_bytes) == (FLOAT * 8, FLOAT * 18)
    assert last.activation_bytes == pytest.approx(FLOAT * 8 + LONG * 4, abs=FLOAT)
    # a stage that begins with it keeps what arrives there
    assert [layer.shared_bytes for layer in (first, relu, last)] == [0, 0, FLOAT * 32]


def test_sizes_are_of_minibatch_with_first_microbatch_measured():
    chain = chain_of(nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2)))
    whole, parts = (measured(chain, torch.ones(4, 3), num_microbatches=count)[1] for count in (1, 2))
    assert (whole.output_bytes, whole.activation_bytes) == (parts.output_bytes, parts.activation_bytes)
    slow, twice = (
        measured(chain_of(nn.Sequential(nn.Linear(3, 2), Sleeper(0.03, 0.0))), torch.ones(4, 3), num_microbatches=count)
        for count in (1, 4)
    )
    assert 0.03 <= slow[1].forward_s < 4 * 0.03 <= twice[1].forward_s


def test_relayed_integers_masks_and_recurrence_are_measured():
    layers = measured(small_model.build(1, 4), torch.rand(4, 1, 8, 8))
    positions = 4 * 3
    relayed = 6 * positions * FLOAT * 2 + positions * LONG + positions
    assert [layer.output_bytes for layer in layers[:3]] == [6 * positions * FLOAT, relayed, relayed]
    assert all(layer.forward_s > 0 and layer.backward_s > 0 for layer in layers)


def test_layers_on_integers_or_sharing_a_weight_are_measured():
    embedding, head = nn.Embedding(5, 6), nn.Linear(6, 5, bias=False)
    head.weight = embedding.weight
    module = nn.Sequential(embedding, nn.Flatten(0, 1), head)
    targets = (torch.zeros(8, dtype=torch.long),)
    first, _, last = measured(LayerChain(module, list(module)), torch.ones(4, 2, dtype=torch.long), targets)
    assert first.weight_bytes == last.weight_bytes == FLOAT * 30
    assert first.backward_s > 0


def test_a_lower_precision_sends_less():
    chain = chain_of(nn.Sequential(nn.Linear(3, 8), nn.Linear(8, 2)))
    first, _ = measured(chain, torch.ones(4, 3), arithmetic=ComputeOptions("bf16"))
    assert first.output_bytes == 2 * 32


def test_pictures_have_their_channels_last_where_a_run_has_them():
    seen = []

    class Watching(nn.Conv2d):
        def forward(self, x):
            seen.append((x.is_contiguous(memory_format=torch.channels_last), self.weight.stride()[1]))
            return super().forward(x)

    module = nn.Sequential(Watching(3, 4, 3), nn.Flatten(), nn.Linear(144, 2))
    measured(chain_of(module), torch.rand(4, 3, 8, 8), arithmetic=ComputeOptions(channels_last=True))
    assert set(seen) == {(True, 1)}


def test_weights_buffers_random_state_and_threads_are_unchanged():
    torch.manual_seed(1)
    module = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(), nn.Linear(4, 2))
    chain, threads, expected = chain_of(module), torch.get_num_threads(), torch.random.get_rng_state()
    state = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    measured(chain, torch.rand(4, 3, generator=torch.Generator()), threads=threads + 1)
    assert torch.equal(torch.random.get_rng_state(), expected)
    assert all(torch.equal(tensor, state[name]) for name, tensor in module.state_dict().items())
    assert all(weight.grad is None for weight in module.parameters())
    assert torch.get_num_threads() == threads


def test_frozen_layers_in_front_have_a_forward_alone():
    module = nn.Sequential(nn.Linear(3, 4).requires_grad_(requires_grad=False), nn.Linear(4, 2))
    first, last = measured(chain_of(module), torch.ones(4, 3))
    assert first.activation_bytes == 0
    assert last.backward_s > first.backward_s


@pytest.mark.parametrize(
    ("trainable", "expected"), [((True, True), 3 * 26 * FLOAT), ((False, True), 3 * 10 * FLOAT), ((False, False), None)]
)
def test_an_update_passes_over_each_trainable_weight_three_times(monkeypatch, trainable, expected):
    seconds = itertools.count()
    monkeypatch.setattr(layer_times.time, "perf_counter", lambda: next(seconds))  # every block takes a second
    layers = [nn.Linear(3, 4), nn.Linear(4, 2)]
    for layer, trains in zip(layers, trainable, strict=True):
        layer.requires_grad_(trains)
    targets, loss = (torch.ones(4, 2, requires_grad=True),), nn.functional.mse_loss
    how = Measuring(loss, repeats=2)
    found = measured_model(chain_of(nn.Sequential(*layers)), ((torch.ones(4, 3),), targets), how)
    assert found.update_bytes_per_s == expected


def test_an_update_leaves_sparse_gradients_out():
    chain = chain_of(nn.Sequential(nn.Embedding(5, 2, sparse=True), nn.Linear(2, 2)))
    how = Measuring(lambda output, _target: output.sum(), repeats=1)
    assert measured_model(chain, ((torch.tensor([0, 1, 2, 3]),), LABELS), how).update_bytes_per_s > 0


def test_every_pass_is_told():
    passes = []
    chain = chain_of(nn.Sequential(nn.Linear(3, 2)))
    how = Measuring(CrossEntropy(), repeats=3)
    measured_model(chain, ((torch.ones(4, 3),), LABELS), how, lambda: passes.append(1))
    assert len(passes) == how.passes == WARM_UPS + 3


def test_a_model_too_large_for_its_device_is_refused(monkeypatch):
    def full(*_args, **_options):
        raise torch.OutOfMemoryError

    monkeypatch.setattr(layer_times, "StageModule", full)
    with pytest.raises(ConfigError, match=r"train\.batch_size=4: the whole model does not fit on cpu"):
        measured(chain_of(nn.Sequential(nn.Linear(3, 2))), torch.ones(4, 3))
