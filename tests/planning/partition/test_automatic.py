"""Partitions by the times of a profile."""

from dataclasses import replace

import pytest
import torch
from support.refusals import assert_refused
from torch import nn

from pipetrain.engine.errors import ConfigError
from pipetrain.graph.conversion import chain_of
from pipetrain.planning.partition.automatic import PlannedPartition, merge_layers, stages_of_profile
from pipetrain.planning.profile.profile import Profile, ProfiledLayer, ProfiledWeight
from pipetrain.planning.profiling.auto_partition import AutoPartition
from pipetrain.runner.partition.rules import Even, Explicit, Ppv
from pipetrain.runner.partition.run_plan import make_plan
from pipetrain.runner.partition.shared_weight import SharedWeight


def test_merged_layers_cost_what_their_parts_cost():
    layers = tuple(ProfiledLayer(name, 1.0, 2.0, number, 10, 100) for number, name in enumerate("abcd"))
    parts = merge_layers(Profile(layers, ((0, 1), (1, 2), (2, 3)), 8, 1e9), [0, 1, 3])
    assert parts.layers == (layers[0], ProfiledLayer("b", 2.0, 4.0, 2, 20, 200), layers[3])
    assert (parts.edges, parts.batch_size, parts.bytes_per_s) == (((0, 1), (1, 2)), 8, 1e9)


def test_weight_shared_by_merged_layers_counts_once():
    layers = tuple(ProfiledLayer(name, 1.0, 2.0, 1, 10, 100) for name in "abc")
    shared = (SharedWeight((0, 1), 4), SharedWeight((1, 2), 3))
    parts = merge_layers(Profile(layers, ((0, 1), (1, 2)), shared_weights=shared), [0, 2])
    assert [layer.weight_bytes for layer in parts.layers] == [16, 10]
    assert parts.shared_weights == (SharedWeight((0, 1), 3),)


def test_merged_layers_hold_each_weight_once():
    tied, own, other = (ProfiledWeight(name, (2,), 4) for name in ("tied", "own", "other"))
    held = ((tied, own), (tied,), (other, tied), None)
    layers = tuple(ProfiledLayer("layer", 1.0, 2.0, 1, 10, 100, weights=each) for each in held)
    shared = (SharedWeight((0, 1, 2), 8), SharedWeight((0, 2), 2), SharedWeight((1, 2), 1))
    profile = Profile(layers, ((0, 1), (1, 2), (2, 3)), shared_weights=shared)
    parts = merge_layers(profile, [0, 2, 3])
    assert [layer.weights for layer in parts.layers] == [(tied, own), (other, tied), None]
    assert parts.shared_weights == (SharedWeight((0, 1), 11),)
    assert [layer.weights for layer in merge_layers(profile, [0, 2]).layers] == [(tied, own), None]


def test_plan_has_found_cuts_with_measured_times():
    chain = chain_of(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)))
    rule = PlannedPartition([2], [0.25, 0.5], (1, 1))
    plan = rule.timed(make_plan(chain, rule, [torch.zeros(2, 3)]))
    assert (plan.rule, [(stage.first, stage.last) for stage in plan.stages]) == ("auto", [(0, 2), (2, 3)])
    assert [stage.estimated_seconds for stage in plan.stages] == [0.25, 0.5]


def test_a_number_of_stages_that_is_none_is_refused():
    assert_refused(r"partition\.stages=0: .*at least 1.*null", AutoPartition, 0)


def test_a_number_of_stages_beside_replicas_is_refused():
    with pytest.raises(ConfigError, match=r"partition\.stages=2 with partition\.replicated=true.*topology\.devices"):
        AutoPartition(2, replicated=True)
    assert_refused(r"partition\.replicated=2: must be true or false", AutoPartition, replicated=2)


TIMES, WEIGHTS = (4.0, 1.0, 1.0, 1.0, 1.0), (8, 0, 8, 0, 8)
LAYERS = tuple(ProfiledLayer("same", t, t, 1, w, 1) for t, w in zip(TIMES, WEIGHTS, strict=True))
PROFILE = Profile(LAYERS, tuple((i, i + 1) for i in range(4)))


def test_even_stages_balance_the_times_of_the_profile():
    assert stages_of_profile(Even(2), PROFILE) == ((0,), (1, 2, 3, 4))


def test_stages_begin_where_they_are_told_to():
    assert stages_of_profile(Explicit([2, 3]), PROFILE) == ((0, 1), (2,), (3, 4))


def test_placement_vector_counts_the_layers_that_have_weights():
    assert stages_of_profile(Ppv([2]), PROFILE) == ((0, 1, 2), (3, 4))


def test_placement_vector_leaves_norms_out():
    carrying = (True, False, False, False, True)
    layers = tuple(replace(layer, carries_weight=each) for layer, each in zip(LAYERS, carrying, strict=True))
    assert stages_of_profile(Ppv([1]), replace(PROFILE, layers=layers)) == ((0,), (1, 2, 3, 4))
    assert_refused("the model has 2 weight layers", stages_of_profile, Ppv([2]), replace(PROFILE, layers=layers))


TIED = replace(PROFILE, shared_weights=(SharedWeight((0, 2), 8),))


def test_tied_layers_of_a_profile_stay_in_one_stage_where_copies_would_part():
    assert stages_of_profile(Even(2), TIED, shares_weights=True) == ((0,), (1, 2, 3, 4))
    assert stages_of_profile(Even(2), TIED) == ((0, 1, 2), (3, 4))
    twice = replace(TIED, shared_weights=(*TIED.shared_weights, SharedWeight((0, 3), 8)))
    shared = r"layers 0 \(same#0\) and 2 \(same#2\) share a weight of same \(layers 0, 2\) and must be"
    for profile in (TIED, twice):
        assert_refused(shared, stages_of_profile, Explicit([1]), profile)


def test_ties_of_a_profile_have_their_names_and_are_of_trained_weights():
    tied, other = ProfiledWeight("decoder.embedding.weight", (2,), 4), ProfiledWeight("other", (2,), 4)
    held = ((tied,), (other,), (tied,), (), ())
    layers = tuple(replace(layer, weights=each) for layer, each in zip(LAYERS, held, strict=True))
    with pytest.raises(ConfigError, match=r"share decoder\.embedding\.weight and must be in one stage"):
        stages_of_profile(Explicit([2]), replace(TIED, layers=layers))
    frozen = replace(TIED, layers=tuple(replace(layer, weights=()) for layer in LAYERS))
    assert stages_of_profile(Explicit([2]), frozen) == ((0, 1), (2, 3, 4))


def test_more_stages_than_layers_are_refused():
    assert_refused("at most 5 stages", stages_of_profile, Even(6), PROFILE)
