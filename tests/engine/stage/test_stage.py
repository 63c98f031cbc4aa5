"""What one stage computes: gradients, relays, parameters, operations in place."""

import pytest
import torch
from support.pipelines import Function, newest, stage_of, step, unit_gradients
from torch import nn
from torch.utils.checkpoint import checkpoint

from pipetrain.engine.losses import CrossEntropy
from pipetrain.engine.methods.naive_async import NaiveAsync
from pipetrain.engine.methods.pipedream import PipeDream
from pipetrain.engine.program.planned_operations import Activations
from pipetrain.engine.program.weight_reads import StageContext, WeightRead
from pipetrain.engine.stage.stage import WeightedTargets
from pipetrain.engine.weights.transforms import Predicted


def test_stage_equals_its_layers_and_returns_input_gradient():
    torch.manual_seed(0)
    layers, x, g = [nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)], torch.randn(5, 3), torch.randn(5, 2)
    stage = stage_of(*layers, index=1)
    (y,), (dx,) = step(stage, (x,), (g,))
    plain = x.clone().requires_grad_()
    output = nn.Sequential(*layers)(plain)
    wanted = torch.autograd.grad(output, [plain, *nn.Sequential(*layers).parameters()], g)
    assert torch.equal(y, output)
    assert not y.requires_grad
    assert torch.equal(dx, wanted[0])
    assert all(torch.equal(a, b) for a, b in zip(stage.gradients.take().values(), wanted[1:], strict=True))


def test_microbatch_loss_is_weighted_by_its_share():
    torch.manual_seed(0)
    layer, x, y = nn.Linear(3, 4), torch.randn(7, 3), torch.randint(0, 4, (7,))
    stage = stage_of(layer, loss=CrossEntropy())
    for j, (rows, share) in enumerate(((slice(0, 4), 4 / 7), (slice(4, 7), 3 / 7))):
        targets = WeightedTargets((y[rows],), share)
        (loss,) = stage.forward((0, j), (x[rows],), newest(stage), Activations.KEPT, targets, store=False)
        torch.testing.assert_close(loss, nn.functional.cross_entropy(layer(x[rows]), y[rows]))
        stage.backward([(0, j)], None, newest(stage))
    wanted = torch.autograd.grad(nn.functional.cross_entropy(layer(x), y), list(layer.parameters()))
    for ours, theirs in zip(stage.gradients.take().values(), wanted, strict=True):
        torch.testing.assert_close(ours, theirs)


# -- relays ----------------------------------------------------------------------------------------------------------


def test_relayed_tensor_that_nobody_uses_gets_zeros():
    stage = stage_of(Function(lambda linear, x, skip: (linear(x), skip.detach()), nn.Linear(2, 2)), index=1)
    outputs, gradients = step(stage, (torch.ones(3, 2), torch.ones(3, 5)), (torch.ones(3, 2), torch.ones(3, 5)))
    assert [tuple(o.shape) for o in outputs] == [(3, 2), (3, 5)]
    assert torch.equal(gradients[1], torch.zeros(3, 5))
    assert gradients[0].abs().sum() > 0


def test_relay_returns_the_gradient_that_came_and_keeps_it_whole():
    stage = stage_of(Function(lambda linear, x, skip: (linear(x), skip), nn.Linear(2, 2)), index=1)
    g = torch.randn(3, 5)
    _, gradients = step(stage, (torch.ones(3, 2), torch.ones(3, 5)), (torch.ones(3, 2), g))
    assert torch.equal(gradients[1], g)


def test_stage_without_weights_passes_all_gradients_on():
    stage = stage_of(Function(lambda x, ids: (x, ids)), index=1)
    outputs, gradients = step(stage, (torch.ones(2), torch.arange(2)), (torch.full((2,), 3.0),))
    assert torch.equal(outputs[1], torch.arange(2))
    assert [g.tolist() for g in gradients] == [[3.0, 3.0]]
    stage.update(0, stage.gradients.take(), keep=False, steady=True)
    assert stage.updates == 1


def test_only_floating_point_tensors_carry_gradients_back():
    embed, linear = nn.Embedding(5, 2), nn.Linear(2, 2)

    def layer(embed, linear, x, ids, mask):
        return linear(x + embed(ids)).masked_fill(mask, 0.0), ids, mask

    stage = stage_of(Function(layer, embed, linear), index=1)
    inputs = torch.randn(3, 2), torch.tensor([0, 4, 4]), torch.tensor([[True], [False], [False]])
    outputs, gradients = step(stage, inputs, (torch.ones(3, 2),))
    assert [o.dtype for o in outputs] == [torch.float32, torch.int64, torch.bool]
    assert len(gradients) == 1
    assert gradients[0][0].tolist() == [0.0, 0.0]
    assert stage.gradients.take().keys() == dict(stage.module.named_parameters()).keys()


def test_first_stage_returns_no_gradient_of_its_data():
    stage = stage_of(nn.Linear(2, 2), index=0)
    assert step(stage, (torch.ones(1, 2),), (torch.ones(1, 2),))[1] == ()


def test_output_without_gradient_ignores_received_gradient():
    stage = stage_of(Function(lambda linear, x: (linear(x), x), nn.Linear(2, 2)), index=0)
    step(stage, (torch.ones(1, 2),), (torch.ones(1, 2), torch.ones(1, 2)))
    assert len(stage.gradients.take()) == 2


# -- parameters ------------------------------------------------------------------------------------------------------


def test_frozen_parameters_stay_and_have_no_gradient():
    frozen, free = nn.Linear(3, 3), nn.Linear(3, 3)
    frozen.requires_grad_(requires_grad=False)
    stage = stage_of(frozen, free, index=1)
    before = {name: value.clone() for name, value in stage.state().items()}
    _, (dx,) = step(stage, (torch.randn(2, 3),), (torch.ones(2, 3),), activations=Activations.REBOUND)
    assert dx.abs().sum() > 0
    gradients = stage.gradients.take()
    assert gradients.keys() == {"layers.1.child.weight", "layers.1.child.bias"}
    stage.update(0, gradients, keep=True, steady=True)
    changed = {name for name, value in stage.state().items() if not torch.equal(value, before[name])}
    assert changed == {"1.weight", "1.bias"}
    assert not frozen.weight.requires_grad


def test_weight_that_a_minibatch_does_not_touch_has_no_gradient():
    stage = stage_of(Function(lambda a, b, x: a(x) if x.sum() > 0 else b(x), nn.Linear(2, 2), nn.Linear(2, 2)), index=1)
    step(stage, (torch.ones(1, 2),), (torch.ones(1, 2),))
    assert {name.split(".")[3] for name in stage.gradients.take()} == {"0"}


def test_weight_used_by_two_layers_is_one_weight():
    a, b = nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False)
    b.weight = a.weight
    stage, x = stage_of(a, nn.Tanh(), b, index=1), torch.randn(2, 3)
    wanted = torch.autograd.grad(b(torch.tanh(a(x))).sum(), [a.weight])[0]
    step(stage, (x,), (torch.ones(2, 3),))
    (gradient,) = stage.gradients.take().values()
    torch.testing.assert_close(gradient, wanted)


class Product(nn.Module):
    def __init__(self, weight):
        super().__init__()
        self.w = nn.Parameter(weight)

    def forward(self, x):
        return torch.tanh(x @ self.w) @ self.w.t()


@pytest.mark.parametrize("layout", ["offset", "every other", "transposed"])
def test_memory_layout_changes_no_prediction_or_gradient(layout):
    torch.manual_seed(0)
    weight = {
        "offset": torch.randn(20)[4:].view(4, 4),
        "every other": torch.randn(4, 8)[:, ::2],
        "transposed": torch.randn(4, 4).t(),
    }[layout]
    x, results = torch.randn(2, 4), []
    for given in (weight, weight.clone(memory_format=torch.contiguous_format)):
        stage = stage_of(Product(given), index=1)
        stage.update(0, {"layers.0.w": torch.ones(4, 4)}, keep=False, steady=True)
        (y,) = stage.forward((1, 0), (x,), WeightRead(1, Predicted(2)), Activations.REBOUND, store=False)
        (dx,) = stage.backward([(1, 0)], (torch.ones(2, 4),), WeightRead(1))
        results.append((y, dx, stage.gradients.take()["layers.0.w"]))
    for ours, wanted in zip(*results, strict=True):
        torch.testing.assert_close(ours, wanted)


# -- operations in place ---------------------------------------------------------------------------------------------


INPUT_LAYERS = {
    "plain": (lambda linear, x: linear(x), True),
    "transposed": (lambda linear, x: linear(x.mT.contiguous()), False),  # whose gradient has other strides
    "relay": (lambda linear, x: linear(x) + x, True),
    "in place": (lambda linear, x: linear(x.mul_(2)), False),
    "unused": (lambda linear, x: linear(torch.ones(3, 3)) + x.detach(), False),
}


@pytest.mark.parametrize("name", INPUT_LAYERS)
def test_gradients_of_inputs_are_the_same_bits_and_strides_in_every_minibatch(name):
    torch.manual_seed(0)
    (layer, as_leaf), linear = INPUT_LAYERS[name], nn.Linear(3, 3)
    stage = stage_of(Function(layer, linear), index=1)
    for _ in range(3):
        x, g = torch.randn(3, 3), torch.randn(3, 3)
        plain = x.clone().requires_grad_()
        (wanted,) = torch.autograd.grad(layer(linear, plain * 1), plain, g, allow_unused=True)
        wanted = torch.zeros(3, 3) if wanted is None else wanted
        _, (gradient,) = step(stage, (x,), (g,))
        assert torch.equal(gradient, wanted)
        assert gradient.stride() == wanted.stride()
        stage.gradients.take()
    assert bool(stage._inputs_as_leaves) == as_leaf


@pytest.mark.parametrize("activations", [Activations.KEPT, Activations.REBOUND])
def test_first_layer_may_work_in_place_on_the_input(activations):
    def layer(linear, x):
        return linear(x.mul_(2.0).relu_())

    linear, x, g = nn.Linear(3, 3), torch.randn(2, 3), torch.randn(2, 3)
    plain = x.clone().requires_grad_()
    wanted = torch.autograd.grad(linear((plain * 2).relu()), plain, g)[0]
    stage = stage_of(Function(layer, linear), index=1)
    _, (dx,) = step(stage, (x.clone(),), (g,), activations=activations)
    torch.testing.assert_close(dx, wanted)


@pytest.mark.parametrize("changes", [False, True])
def test_stored_inputs_are_copied_until_proven_unchanged(changes):
    stage, copied = stage_of(Function(lambda linear, x: linear(x.mul_(2.0) if changes else x), nn.Linear(3, 3))), []
    for t in range(2):
        x = torch.randn(2, 3)
        stage.forward((t, 0), (x,), WeightRead(0), Activations.DROPPED, store=True)
        copied.append(stage._in_flight[t, 0].inputs[0] is not x)
    assert copied == [True, changes]


@pytest.mark.parametrize("activations", [Activations.KEPT, Activations.REBOUND])
def test_in_place_corruption_of_backward_input_is_an_error(activations):
    def layer(linear, x):
        hidden = linear(x).exp()
        hidden.add_(1.0)
        return hidden

    stage = stage_of(Function(layer, nn.Linear(3, 3)), index=1)
    with pytest.raises(RuntimeError, match=r"in-?place"):
        step(stage, (torch.randn(2, 3),), (torch.ones(2, 3),), activations=activations)

    assert torch.backends.cudnn.enabled


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("reads", ["stashed", "newest"])
def test_self_checkpointing_layer_recomputes_by_backward_weights(reads, reentrant):
    torch.manual_seed(0)
    inner = [nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3)]
    x, results, own = torch.randn(2, 3), [], []
    for again in (False, True):
        block = nn.Sequential(*[type(p)(3, 3) if isinstance(p, nn.Linear) else nn.Tanh() for p in inner])
        block.load_state_dict(nn.Sequential(*inner).state_dict())
        if again:
            layer = Function(lambda b, x: checkpoint(b, x, use_reentrant=reentrant), block)
        else:
            layer = Function(lambda b, x: b(x), block)
        stage = stage_of(layer, index=1)
        activations = Activations.REBOUND if reads == "newest" else Activations.KEPT
        stage.forward((0, 0), (x,), WeightRead(0), activations, store=False)
        step_of_one = unit_gradients(stage)
        stage.update(9, step_of_one, keep=reads == "stashed", steady=True)
        (dx,) = stage.backward([(0, 0)], (torch.ones(2, 3),), WeightRead(1 if reads == "newest" else 0))
        results.append(dx)
        own.append(stage.gradients.take())
    if reads == "stashed":
        torch.testing.assert_close(*results)
        torch.testing.assert_close(*own)
    else:  # activations are redone with the newest weights, the weights are the newest either way
        w = [layer.weight.detach() for layer in (block[0], block[2])]
        hidden = torch.tanh(x @ w[0].T + block[0].bias.detach())
        torch.testing.assert_close(results[1], ((torch.ones(2, 3) @ w[1]) * (1 - hidden**2)) @ w[0])


def rebound(method, *, keep):
    """Output, input gradient and gradients of a stage whose backward reads newer weights than its forward."""
    torch.manual_seed(0)
    stage = stage_of(nn.Linear(3, 4), nn.Tanh(), nn.LayerNorm(4), nn.Linear(4, 2), index=1)
    stage.enter(method, StageContext(1, 4, 1, delay=2, entry_delay=3), 0, fresh=True, predicts=False)
    for t in range(2):  # the first forward measures its activations
        (y,) = stage.forward((t, 0), (torch.randn(5, 3),), newest(stage), Activations.REBOUND, store=False)
        stage.weights.update(unit_gradients(stage), keep=keep)
        (dx,) = stage.backward([(t, 0)], (torch.randn(5, 2),), newest(stage))
    return [y, dx, *stage.gradients.take().values()]


def test_backward_finds_newest_weights_in_place_or_by_name_alike():
    in_place, by_name = rebound(NaiveAsync(), keep=False), rebound(PipeDream(), keep=False)
    assert all(torch.equal(a, b) for a, b in zip(in_place, by_name, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(by_name, rebound(PipeDream(), keep=True), strict=True))


def test_version_that_was_to_stay_in_place_and_did_not_is_an_error():
    with pytest.raises(RuntimeError, match="overwritten"):
        rebound(NaiveAsync(), keep=True)


@pytest.mark.parametrize("activations", [Activations.KEPT, Activations.REBOUND])
def test_output_that_is_a_weight_is_sent_as_a_copy(activations):
    stage = stage_of(Function(lambda layer, x: (layer(x), layer.weight), nn.Linear(3, 3)), index=1)
    product, weight = stage.forward((0, 0), (torch.ones(2, 3),), newest(stage), activations, store=False)
    before = weight.clone()
    stage.update(9, unit_gradients(stage), keep=False, steady=True)
    assert torch.equal(weight, before)
    assert not torch.equal(stage.weights.newest.tensors["layers.0.parts.0.weight"], before)
    assert product.shape == (2, 3)
