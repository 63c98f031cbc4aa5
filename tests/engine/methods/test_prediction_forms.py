"""PipeOptim's forms of prediction: with the coming learning rates, and along the path that momentum alone takes."""

from dataclasses import replace

import pytest
import torch
from support import reference
from support.against_reference import assert_close, run_by_hand, run_pipeline
from support.methods import MethodCase
from support.moments import parameters
from support.pipelines import difference, half_decay, trained
from support.quick_cases import GRID
from torch import nn

from pipetrain.engine.methods.pipeoptim import PipeOptim
from pipetrain.engine.optim.stage_optimizer import StageOptimizer
from pipetrain.engine.schedules.one_f_one_b import OneFOneB
from pipetrain.engine.schedules.pipelined_backprop import PipelinedBackprop

CASES = {form: MethodCase(PipeOptim(form), OneFOneB()) for form in ("constant", "scheduled", "decaying")}


@pytest.mark.parametrize(
    ("form", "kind"),
    [
        *(("scheduled", kind) for kind in ("momentum", "adam", "nadam")),
        *(("decaying", kind) for kind in ("momentum", "adam", "adamw")),
    ],
)
@pytest.mark.parametrize(("D", "N"), GRID)
def test_prediction_equals_the_reference(form, kind, D, N):
    ours = run_pipeline(CASES[form], D, N, kind)
    theirs = run_by_hand(replace(reference.FORMULAS["pipeoptim"], prediction=form), D, N, kind)
    assert_close(ours, theirs, 1e-6 if kind == "nadam" else 1e-9)  # torch keeps Πμ in float32


@pytest.mark.parametrize("form", ["scheduled", "decaying"])
def test_prediction_under_other_schedule_and_recomputation_equals_the_reference(form):
    case = MethodCase(PipeOptim(form), PipelinedBackprop())
    formulas = replace(reference.FORMULAS["pipeoptim_backprop"], prediction=form)
    ours, theirs = run_pipeline(case, 4, 2, "adam", range(4)), run_by_hand(formulas, 4, 2, "adam", range(4))
    assert difference(ours[1], theirs[1]) < 1e-9


@pytest.mark.parametrize(
    "build",
    [lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), lambda p: torch.optim.Adam(p, lr=0.1, betas=(0.8, 1 - 1e-12))],
)
def test_decaying_prediction_is_where_steps_without_gradients_lead(build):
    """β₂ near 1 keeps Adam's v: the prediction does not let it decay."""
    torch.manual_seed(0)
    w = nn.Parameter(torch.randn(5, dtype=torch.float64))
    ours = StageOptimizer(build, {"w": w}, lambda _k: 0.1)
    for _ in range(3):
        ours.step({"w": torch.randn(5, dtype=torch.float64)})
    predicted = w.detach() - ours.decaying_steps(4, {"w": w})["w"]
    for _ in range(4):
        ours.step({"w": torch.zeros(5, dtype=torch.float64)})
    torch.testing.assert_close(predicted, w.detach(), rtol=0, atol=1e-3)


def test_coming_rates_of_a_replicated_stage_are_those_of_its_rounds():
    optimizer = StageOptimizer(lambda p: torch.optim.SGD(p, lr=0.1), {"w": parameters()[0]}, half_decay)
    optimizer.updates, optimizer.stride = 4, 2
    assert optimizer.coming_learning_rates(3) == {"w": [half_decay(4), half_decay(6), half_decay(8)]}


@pytest.mark.parametrize("form", ["scheduled", "decaying"])
def test_forms_of_prediction_have_the_staleness_and_versions_of_pipeoptim(form):
    pipe = trained(CASES[form], 4, 1)
    assert pipe.reports("forward_staleness") == [[3], [2], [1], [0]]
    assert pipe.reports("backward_staleness") == [[0]] * 4
    assert pipe.reports("weight_versions_max") == [2, 2, 2, 1]
