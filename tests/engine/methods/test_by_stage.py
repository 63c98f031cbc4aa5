"""Settings of the optimizer that differ from stage to stage: learning rates by delay, and momentum."""

from dataclasses import replace
from functools import partial

import pytest
from support import reference
from support.against_reference import OPTIMIZERS, assert_close, run_by_hand, run_pipeline
from support.equal_bits import bits, same_everywhere
from support.methods import METHODS, MethodCase
from support.pipelines import difference
from support.worker_pool import job, simulated

from pipetrain.engine.errors import ConfigError
from pipetrain.engine.executors.pipeline_rules import PipelineRules
from pipetrain.engine.methods.delayed import Delayed
from pipetrain.engine.methods.hogwild import Hogwild
from pipetrain.engine.methods.naive_async import NaiveAsync
from pipetrain.engine.methods.pipemare import PipeMare
from pipetrain.engine.methods.stale import Stale
from pipetrain.engine.schedules.one_f_one_b import OneFOneB
from pipetrain.engine.schedules.pipelined_backprop import PipelinedBackprop, PipeMareSchedule
from pipetrain.engine.schedules.replicas import Replicas
from pipetrain.engine.schedules.round_robin import RoundRobin
from pipetrain.runner.config.optimizer import OptimizerSettings
from pipetrain.runner.training.builders.optimizer import build_torch_optimizer

ALIKE = MethodCase(NaiveAsync(), PipeMareSchedule())
QUICK, SLOW = [(1, 1), (3, 1), (6, 2)], [(2, 2), (4, 4), (5, 1), (5, 3)]
GRID = [*QUICK, *(pytest.param(D, N, marks=pytest.mark.slow) for D, N in SLOW)]


def delays(case, D, N):
    """τ of each stage."""
    rules = PipelineRules(case.schedule, case.method, D, N)
    rules.divide_rates_by_delay(10)
    return [context.rate_delay for context in rules.contexts]


@pytest.mark.parametrize(("D", "N"), GRID)
@pytest.mark.parametrize("rule", ["naive_async", "pipedream", "vertical_sync", "timeprest", "pipeoptim_backprop"])
def test_rates_by_delay_equal_the_reference(rule, D, N):
    ours = run_pipeline(rule, D, N, lr_by_delay=7)
    theirs = run_by_hand(replace(reference.FORMULAS[rule], by_delay=7), D, N)
    assert_close(ours, theirs)
    if D > N + 1:
        assert difference(theirs[1], run_by_hand(rule, D, N)[1]) > 1e-4


@pytest.mark.parametrize(("D", "N"), GRID)
def test_rates_by_delay_are_those_of_pipemare_under_its_schedule(D, N):
    plain = run_pipeline(ALIKE, D, N, lr_by_delay=7)
    assert plain[0] == run_pipeline("pipemare_t1", D, N)[0]
    assert difference(plain[1], run_pipeline("pipemare_t1", D, N)[1]) == 0.0


@pytest.mark.parametrize("counts", [(2, 2), (3, 1), (1, 2), (2, 3, 1)])
@pytest.mark.parametrize("N", [1, 2])
def test_rates_by_delay_of_replicas_are_those_of_pipemare(counts, N):
    schedule = RoundRobin(PipeMareSchedule(), Replicas(counts))
    pipemare = PipelineRules(schedule, PipeMare(anneal_steps=7), len(counts), N)
    plain = PipelineRules(schedule, NaiveAsync(), len(counts), N)
    plain.divide_rates_by_delay(7)
    for one, other in zip(pipemare.contexts, plain.contexts, strict=True):
        for k in range(9):
            expected = pipemare.method.learning_rate_scale(one, k) * one.rate_factor(k)
            assert other.rate_factor(k) == expected


def test_delay_of_rates_is_the_staleness_of_forwards():
    assert delays(METHODS["pipedream"], 4, 1) == [3, 2, 1, 1]
    assert delays(METHODS["vertical_sync"], 4, 1) == [3, 3, 3, 3]
    assert delays(METHODS["pipedream_2bw"], 4, 4) == [1, 1, 1, 1]
    assert delays(MethodCase(Delayed([5, 0]), OneFOneB(depth=1)), 2, 1) == [5, 1]
    assert delays(METHODS["gpipe"], 4, 2) == [1, 1, 1, 1]


@pytest.mark.parametrize(
    ("method", "schedule", "said"),
    [
        (PipeMare(), PipeMareSchedule(), "method.t1=false"),
        (Hogwild(t1=True), OneFOneB(depth=1), "method.t1=false"),
        (Hogwild(), OneFOneB(depth=1), "method=hogwild method.t1=true"),
        (Stale([0.5, 1.0]), PipelinedBackprop(), "method=stale"),
    ],
)
def test_rates_by_delay_refuse_a_method_that_scales_rates(method, schedule, said):
    rules = PipelineRules(schedule, method, 2, 1)
    with pytest.raises(ConfigError, match=r"optimizer\.lr_by_delay=9: ") as caught:
        rules.divide_rates_by_delay(9)
    assert said in str(caught.value)


# -- momentum ----------------------------------------------------------------------------------------------------------

OF_TORCH = {
    "momentum": {"_target_": "torch.optim.SGD", "momentum": 0.9, "weight_decay": 0.01},
    "adam": {"_target_": "torch.optim.Adam", "betas": [0.8, 0.95], "eps": 1e-6, "weight_decay": 0.01},
    "adamw": {"_target_": "torch.optim.AdamW", "betas": [0.8, 0.95], "eps": 1e-6, "weight_decay": 0.1},
}
PAIR = [0.5, 0.95]


def of_stages(section, pair=PAIR):
    return OptimizerSettings.of({**section, "lr": 0.1, "clip_norm": None, "momentum_by_stage": pair})


@pytest.mark.parametrize(("D", "N"), GRID)
@pytest.mark.parametrize(
    ("rule", "kind"),
    [("pipeoptim", "momentum"), ("pipeoptim", "adam"), ("pipeoptim", "adamw"), ("pipedream", "adamw")],
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


@pytest.mark.parametrize("pair", [0.9, [0.9], [0.9, 1.0], [0.0, 0.9], ["a", "b"]])
def test_momentum_by_stage_refuses_what_is_no_pair_of_momenta(pair):
    with pytest.raises(ConfigError, match=r"optimizer\.momentum_by_stage="):
        of_stages(OF_TORCH["adam"], pair)


# -- runs --------------------------------------------------------------------------------------------------------------

NADAM = {"_target_": "torch.optim.NAdam", "lr": 0.01, "betas": [0.9, 0.99]}
BY_STAGE = {**NADAM, "lr_by_delay": 6, "momentum_by_stage": [0.5, 0.9]}
OWN = [{"max_dims": 1, "betas": [0.1, 0.9]}]


@pytest.mark.slow
@pytest.mark.parametrize(("case", "D"), [("pipeoptim", 3), ("pipedream", 4), ("stale", 4)])
def test_runs_by_stage_have_equal_bits_in_both_executors(tmp_path, case, D):
    whole = same_everywhere(tmp_path, case, D, optimizer=BY_STAGE)
    for name in ("lr_by_delay", "momentum_by_stage"):
        fewer = {**BY_STAGE, name: None}
        assert bits(simulated(job(tmp_path / name, case, D, optimizer=fewer))) != bits(whole)


@pytest.mark.slow
def test_runs_by_stage_with_replicas_and_groups_have_equal_bits(tmp_path):
    changes = {"partition": {"replicas": [2, 1]}, "train": {"epochs": 2, "microbatches": 2}}
    same_everywhere(tmp_path, "pipeoptim", 2, optimizer={**BY_STAGE, "groups": OWN}, **changes)


def test_group_with_betas_of_its_own_keeps_them(tmp_path):
    chosen, found = {**NADAM, "groups": [{"match": "*", "betas": [0.1, 0.9]}]}, []
    for name, pair in (("plain", None), ("by_stage", [0.5, 0.9])):
        optimizer = {**chosen, "momentum_by_stage": pair}
        found.append(bits(simulated(job(tmp_path / name, "pipedream", 2, optimizer=optimizer, train={"epochs": 1}))))
    assert found[0] == found[1]
