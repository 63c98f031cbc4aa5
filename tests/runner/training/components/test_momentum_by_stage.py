"""Momentum that differs from stage to stage."""

from dataclasses import replace
from functools import partial

import pytest
from support.against_reference import OPTIMIZERS, assert_close, run_by_hand, run_pipeline
from support.equal_bits import bits
from support.quick_cases import FEW
from support.worker_pool import job, simulated

from pipetrain.engine.errors import ConfigError
from pipetrain.runner.config.optimizer import OptimizerSettings
from pipetrain.runner.training.components.optimizer import build_torch_optimizer

OF_TORCH = {
    "momentum": {"_target_": "torch.optim.SGD", "momentum": 0.9, "weight_decay": 0.01},
    "adam": {"_target_": "torch.optim.Adam", "betas": [0.8, 0.95], "eps": 1e-6, "weight_decay": 0.01},
    "adamw": {"_target_": "torch.optim.AdamW", "betas": [0.8, 0.95], "eps": 1e-6, "weight_decay": 0.1},
}


PAIR = [0.5, 0.95]


def of_stages(section, pair=PAIR):
    return OptimizerSettings.of({**section, "lr": 0.1, "clip_norm": None, "momentum_by_stage": pair})


@pytest.mark.parametrize(("D", "N"), FEW)
@pytest.mark.parametrize(
    ("rule", "kind"), [("pipeoptim", "momentum"), ("pipeoptim", "adam"), ("pipeoptim", "adamw"), ("pipedream", "adamw")]
)
def test_momentum_by_stage_equals_the_reference(rule, kind, D, N):
    settings = of_stages(OF_TORCH[kind])
    options = {"options_of_stage": partial(settings.options_of_stage, num_stages=D)}
    ours = run_pipeline(rule, D, N, kind, build=partial(build_torch_optimizer, settings), **options)
    momenta = [PAIR[0] + (PAIR[1] - PAIR[0]) * (D - 1 - r) / D for r in range(D)]
    optimizers = [replace(OPTIMIZERS[kind], mu=each, beta1=each) for each in momenta]
    theirs = run_by_hand(rule, D, N, kind, optimizers=optimizers)
    assert_close(ours, theirs, 1e-9)


def test_momentum_by_stage_sets_the_first_momentum_alone():
    sgdm, adam = of_stages(OF_TORCH["momentum"], [0.9, 0.99]), of_stages(OF_TORCH["adam"], [0.9, 0.99])
    assert sgdm.options_of_stage(0, 4) == {"momentum": pytest.approx(0.9675)}
    assert adam.options_of_stage(3, 4) == {"betas": [pytest.approx(0.9), 0.95]}
    muon = of_stages({"_target_": "pipetrain.zoo.optim.matrices.Muon"})
    assert muon.options_of_stage(1, 2) == {"momentum": 0.5, "adamw_betas": [0.5, 0.95]}


@pytest.mark.parametrize("section", [{"_target_": "torch.optim.SGD"}, {"_target_": "torch.optim.Adagrad"}])
def test_momentum_by_stage_refuses_an_optimizer_without(section):
    with pytest.raises(ConfigError, match=rf"momentum_by_stage=.*{section['_target_']}.*optimizer=sgdm"):
        of_stages(section).options_of_stage(0, 2)


NADAM = {"_target_": "torch.optim.NAdam", "lr": 0.01, "betas": [0.9, 0.99]}


def test_group_with_betas_of_its_own_keeps_them(tmp_path):
    chosen, found = {**NADAM, "groups": [{"match": "*", "betas": [0.1, 0.9]}]}, []
    for name, pair in (("plain", None), ("by_stage", [0.5, 0.9])):
        optimizer = {**chosen, "momentum_by_stage": pair}
        found.append(bits(simulated(job(tmp_path / name, "pipedream", 2, optimizer=optimizer, train={"epochs": 1}))))
    assert found[0] == found[1]
