"""Complex weights are trained as their real and imaginary parts would be, by every method and every rule for Δ."""

from functools import partial

import pytest
import torch
from support.complex_model import WIDTH, layers
from support.methods import METHODS, MethodCase, fitting
from support.pipelines import batches, difference, pipeline
from support.quick_cases import every
from torch.optim import SGD, Adagrad, Adam, AdamW, NAdam, RMSprop

from pipetrain.engine.methods.pipeoptim import PipeOptim
from pipetrain.engine.optim.stage_optimizer import StageOptimizer
from pipetrain.engine.schedules.one_f_one_b import OneFOneB
from pipetrain.engine.tensors import as_real

OPTIMIZERS = {
    "sgd": partial(SGD, lr=0.1),
    "momentum": partial(SGD, lr=0.1, momentum=0.9, weight_decay=0.01),
    "nesterov": partial(SGD, lr=0.1, momentum=0.9, nesterov=True),
    "adam": partial(Adam, lr=0.1, weight_decay=0.01),
    "adamw": partial(AdamW, lr=0.1, weight_decay=0.1),
    "nadam": partial(NAdam, lr=0.1),
    "rmsprop": partial(RMSprop, lr=0.1),
    "rmsprop momentum": partial(RMSprop, lr=0.1, momentum=0.5),
    "rmsprop centered": partial(RMSprop, lr=0.1, centered=True),
    "adagrad": partial(Adagrad, lr=0.1, lr_decay=0.1),
}
FORMS = {form: MethodCase(PipeOptim(form), OneFOneB()) for form in ("constant", "scheduled", "decaying")}
STAGES, N = 3, 2


def trained(case, build, *, split, **options):
    """(losses, weights), complex ones as their parts."""
    torch.manual_seed(2)
    x, y = torch.randn(18, 2 * WIDTH, dtype=torch.float64), torch.randint(0, 2 * WIDTH, (18,))
    microbatches = N if fitting(case, STAGES, N) else STAGES
    pipe = pipeline(
        layers(split=split), range(1, STAGES), case, microbatches, build, lambda k: 0.1 / (k + 1), **options
    )
    pipe.train(batches(x, y, 3, microbatches))
    tensors = {name: as_real(tensor) for name, tensor in pipe.state().items()}
    for stage in pipe.stages:
        tensors |= {f"average of {name}": as_real(tensor) for name, tensor in stage.averages.items()}
    return pipe.losses, tensors


def assert_same_trajectory(case, build, **options):
    ours, theirs = (trained(case, build, split=split, **options) for split in (False, True))
    assert ours[0] == pytest.approx(theirs[0], rel=1e-6)
    assert difference(ours[1], theirs[1]) < 1e-10


@pytest.mark.parametrize(
    ("case", "optimizer"),
    every(
        2,
        [*((case, "momentum") for case in METHODS), *((case, "adamw") for case in ("gpipe", "pipemare", "lwp_stash"))],
    ),
)
def test_every_method_trains_them_as_their_parts(case, optimizer):
    assert_same_trajectory(case, OPTIMIZERS[optimizer])


@pytest.mark.parametrize(
    ("form", "optimizer"),
    [
        *(("constant", name) for name in OPTIMIZERS),
        *(("scheduled", name) for name in ("adam", "nadam")),
        *(("decaying", name) for name in ("momentum", "adam", "adamw")),
    ],
)
def test_every_prediction_is_that_of_their_parts(form, optimizer):
    assert_same_trajectory(FORMS[form], OPTIMIZERS[optimizer])


def test_clipping_averages_and_divided_rates_are_those_of_their_parts():
    options = {"clip_norm": 0.01, "average_decay": 0.9, "lr_by_delay": 3, "recompute": range(STAGES)}
    assert_same_trajectory("pipeoptim", OPTIMIZERS["adam"], **options)


def test_error_feedback_treats_them_as_their_parts():
    torch.manual_seed(0)
    weight, gradients = torch.randn(4, dtype=torch.complex128), torch.randn(5, 4, dtype=torch.complex128)
    forms = {torch.clone: torch.nn.Parameter(weight.clone()), as_real: torch.nn.Parameter(as_real(weight).clone())}
    for form, parameter in forms.items():
        optimizer = StageOptimizer(OPTIMIZERS["adam"], {"w": parameter}, lambda _k: 0.1, error_feedback=0.5)
        for gradient in gradients:
            optimizer.step({"w": form(gradient).clone()})
    ours, theirs = forms.values()
    torch.testing.assert_close(as_real(ours.detach()), theirs.detach(), rtol=1e-12, atol=0)
    assert not torch.allclose(ours.detach(), weight)
