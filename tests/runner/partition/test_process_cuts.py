"""Cuts for processes with several stages, against trying all."""

import itertools
from random import Random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.worker_pool import settings as settings_of

from pipetrain.engine.models.cuts import unit_starts
from pipetrain.engine.schedules.placement import Placement
from pipetrain.graph.layer_costs import layer_costs, no_passes
from pipetrain.runner.partition.process_cuts import placed_cost, process_balanced_cuts
from pipetrain.runner.training.components.pipeline import build_partition_rule
from pipetrain.zoo.models import resnet_cifar

PLACEMENTS = [Placement.looped(4, 2), Placement.v_shaped(4), Placement.looped(6, 3), Placement.v_shaped(6)]


def slowest(costs, placement, cuts):
    return max(placement.sums(of_stages(costs, cuts)))


def of_stages(costs, cuts):
    return [sum(costs[a:b]) for a, b in itertools.pairwise([0, *cuts, len(costs)])]


def cost_of(costs, placement, cuts):
    return placed_cost(placement, of_stages(costs, cuts))


@settings(max_examples=30, deadline=None)
@given(st.sampled_from(PLACEMENTS), st.lists(st.integers(1, 20), min_size=8, max_size=20))
def test_no_cut_is_better_elsewhere(placement, costs):
    stages = sum(map(len, placement.stages_of))
    found = process_balanced_cuts([costs] * stages, placement)
    ends = [0, *found, len(costs)]
    moved = [
        [*found[:k], other, *found[k + 1 :]] for k in range(stages - 1) for other in range(ends[k] + 1, ends[k + 2])
    ]
    assert cost_of(costs, placement, found) <= min(cost_of(costs, placement, cuts) for cuts in moved)


def test_slowest_process_is_nearly_as_fast_as_the_best():
    random, ratios = Random(0), []
    for placement in PLACEMENTS * 3:
        costs = [random.randint(1, 20) for _ in range(18)]
        stages = sum(map(len, placement.stages_of))
        found = process_balanced_cuts([costs] * stages, placement)
        every = itertools.combinations(range(1, len(costs)), stages - 1)
        best = min(cost_of(costs, placement, cuts) for cuts in every)
        ratios.append(cost_of(costs, placement, found) / best)
    assert max(ratios) <= 1.05


@pytest.mark.parametrize("placement", PLACEMENTS[:2])
def test_sums_of_processes_are_balanced_where_stages_cannot_be(placement):
    costs = [8, 1, 1, 4, 1, 1, 4, 4]
    found = process_balanced_cuts([costs] * 4, placement)
    best = min(itertools.combinations(range(1, 8), 3), key=lambda cuts: slowest(costs, placement, cuts))
    assert slowest(costs, placement, found) == slowest(costs, placement, best)


def test_cuts_keep_glued_layers_together_and_give_each_stage_weights():
    costs, glued = [1] * 8, [(2, 4)]
    weighted = [True, False, True, False, True, False, False, True]
    found = process_balanced_cuts([costs] * 4, Placement.looped(4, 2), glued)
    assert set(found) <= set(unit_starts(8, glued))
    found = process_balanced_cuts([costs] * 4, Placement.looped(4, 2), (), weighted)
    assert all(any(weighted[a:b]) for a, b in itertools.pairwise([0, *found, 8]))


def test_even_partition_balances_the_processes_of_its_schedule():
    chain = resnet_cifar.build(20, 3, 10)
    costs = layer_costs(chain, [torch.zeros(8, 3, 32, 32)])
    partition = {"_target_": "pipetrain.runner.partition.rules.Even", "stages": 4}
    schedule = {"_target_": "pipetrain.engine.schedules.looped_bfs.LoopedBFS"}
    chosen = settings_of("gpipe", partition=partition, schedule=schedule)
    rule = build_partition_rule(chosen)
    assert rule.placement == Placement.looped(4, 2)
    seconds = [cost.cost for cost in costs]
    cuts = rule.cuts(chain, costs, no_passes, [])
    assert slowest(seconds, rule.placement, cuts) <= 1.05 * sum(seconds) / 2
    assert build_partition_rule(settings_of("gpipe", partition=partition)).placement is None
