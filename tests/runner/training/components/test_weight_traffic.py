"""How often a run reads and writes its weights at each minibatch, by method and optimizer."""

from functools import partial

import pytest
import torch
from support.one_run import prepared
from support.worker_pool import phase, settings
from torch import nn

from pipetrain.runner.config.settings import ReplicaSettings
from pipetrain.runner.training.components.pipeline import build_phases, build_pipeline_rules
from pipetrain.runner.training.components.weight_traffic import (
    passes_of_run,
    passes_of_updates,
    update_passes,
    weight_memory_traffic,
)
from pipetrain.runner.training.timetable import timetable_of

SGDM = 5  # weight, gradient and momentum read, weight and momentum written
COPY, PREDICTION, AVERAGE, ADAMS_DELTA, ACCUMULATION, MICROBATCH = 2, 3, 8, 9, 3, 6


def passes(case, num_stages=3, **changes):
    chosen = settings(case, **changes)
    phases_on = partial(build_phases, chosen, timetable_of(chosen, 24))
    return weight_memory_traffic(phases_on, chosen.optimizer)(num_stages)


@pytest.mark.parametrize(
    ("case", "more"),
    [
        ("gpipe", [0, 0, 0]),
        ("naive_async", [0, 0, 0]),
        ("pipedream", [COPY, COPY, 0]),
        ("vertical_sync", [COPY] * 3),
        ("pipeoptim", [PREDICTION, PREDICTION, 0]),
        ("spectrain", [PREDICTION, PREDICTION, PREDICTION]),  # the last shares its prediction between F and B
        ("pipemare_t2", [COPY + AVERAGE + PREDICTION] * 3),
    ],
)
def test_method_adds_what_its_list_copies_predicts_and_corrects(case, more):
    assert passes(case) == [SGDM + each for each in more]


@pytest.mark.parametrize(
    ("build", "expected"),
    [
        (lambda p: torch.optim.SGD(p, lr=0.1, fused=True), 3),
        (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, fused=True), SGDM),
        (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, fused=False), 3 * SGDM),
        (lambda p: torch.optim.Adam(p, fused=True), 7),
        (lambda p: torch.optim.NAdam(p), 3 * 7),
        (lambda p: torch.optim.LBFGS(p), 9),
    ],
)
def test_optimizer_passes_over_weight_gradient_and_states(build, expected):
    assert update_passes(build([nn.Parameter(torch.zeros(2, 2))])) == expected


def test_optimizer_whose_first_group_is_of_vectors_alone_has_passes():
    optimizer = torch.optim.SGD([{"params": []}, {"params": [nn.Parameter(torch.zeros(2, 2))]}], lr=0.1, fused=True)
    assert update_passes(optimizer) == 3


def test_prediction_with_adam_also_makes_its_direction():
    adam = {"_target_": "torch.optim.Adam", "lr": 0.01}
    assert passes("pipeoptim", optimizer=adam) == [7 + PREDICTION + ADAMS_DELTA] * 2 + [7]


def test_optimizer_that_takes_matrices_alone_has_passes():
    assert passes("gpipe", optimizer={"_target_": "torch.optim.Muon", "lr": 0.01}) == [3 * SGDM] * 3


def test_each_microbatch_reads_the_weights_again():
    assert passes("gpipe", train={"microbatches": 4}) == [SGDM + 3 * MICROBATCH] * 3


def test_measured_passes_lack_the_accumulation_of_further_microbatches():
    chosen = settings("gpipe", train={"microbatches": 4})
    rules = build_pipeline_rules(chosen.phases[0], 3, 4, None)
    assert passes_of_run(chosen, rules) == [SGDM + 3 * ACCUMULATION] * 3


def test_phases_count_by_their_steps():
    found = passes("gpipe", phases=[phase("gpipe", steps=6), phase("pipedream", steps=18)], train={"max_steps": 24})
    assert found == [SGDM + 0.75 * COPY] * 2 + [SGDM]


def test_plan_of_a_run_includes_what_its_method_costs(tmp_path):
    plans = {case: prepared(tmp_path / case, case).plan.stages for case in ("naive_async", "pipemare_t2")}
    for light, more in zip(plans["naive_async"], plans["pipemare_t2"], strict=True):
        assert (light.first, light.last) == (more.first, more.last)
        assert more.estimated_seconds > light.estimated_seconds


def test_replicas_pass_over_their_weights_once_for_each_round():
    chosen = settings("pipedream")
    rules = build_pipeline_rules(chosen.phases[0], 2, 1, None, ReplicaSettings((2, 1)))
    assert passes_of_updates(rules, torch.optim.SGD([nn.Parameter(torch.zeros(2, 2))], fused=True)) == [3 + COPY, 3]
