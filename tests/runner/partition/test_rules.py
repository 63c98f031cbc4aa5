"""The rules that cut a chain into stages."""

import itertools
import re
from pathlib import Path

import pytest
import torch
from hydra.utils import instantiate
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf
from support.refusals import assert_refused
from torch import nn

from pipetrain.engine.errors import ConfigError
from pipetrain.engine.models.cuts import balanced_cuts, unit_starts
from pipetrain.graph.conversion import chain_of
from pipetrain.graph.layer_costs import layer_costs, no_passes
from pipetrain.runner.partition.rules import Even, Explicit, Ppv
from pipetrain.zoo.models import resnet_cifar, small_images

COSTS = st.lists(st.integers(0, 9), min_size=1, max_size=8)


def brute_force(rows, allowed, holds=lambda _a, _b: True):
    """The smallest of the best splits, `rows` the costs at each stage; None where no split holds what it must."""
    layers = len(rows[0])

    def parts(cuts):
        return itertools.pairwise([0, *cuts, layers])

    def worst(cuts):
        return max(sum(row[a:b]) for row, (a, b) in zip(rows, parts(cuts), strict=True))

    every = itertools.combinations(allowed, len(rows) - 1)
    held = [cuts for cuts in every if all(holds(a, b) for a, b in parts(cuts))]
    return list(min(held, key=lambda cuts: (worst(cuts), cuts))) if held else None


@given(st.integers(1, 8), st.data())
def test_balanced_split_is_the_smallest_of_the_best_splits(layers, data):
    stages = data.draw(st.integers(1, layers))
    row = st.lists(st.integers(0, 9), min_size=layers, max_size=layers)
    rows = data.draw(st.lists(row, min_size=stages, max_size=stages) | row.map(lambda costs: [costs] * stages))
    assert balanced_cuts(rows) == brute_force(rows, range(1, layers))


@given(COSTS.filter(lambda costs: len(costs) > 1), st.data())
def test_balanced_split_keeps_glued_layers_together(costs, data):
    layer = st.integers(0, len(costs) - 1)
    glued = data.draw(st.lists(st.tuples(layer, layer), max_size=2))
    starts = unit_starts(len(costs), glued)
    stages = data.draw(st.integers(1, len(starts)))
    cuts = balanced_cuts([costs] * stages, glued)
    assert cuts == brute_force([costs] * stages, starts[1:])
    assert not any(min(pair) < cut <= max(pair) for pair in glued for cut in cuts)


@given(st.lists(st.floats(0, 1e3), min_size=1, max_size=8), st.data())
def test_balanced_split_takes_times_as_well_as_whole_numbers(costs, data):
    stages = data.draw(st.integers(1, len(costs)))
    cuts = balanced_cuts([costs] * stages)
    best = brute_force([costs] * stages, range(1, len(costs)))

    def worst(cuts):
        return max(sum(costs[a:b]) for a, b in itertools.pairwise([0, *cuts, len(costs)]))

    assert len(cuts) == stages - 1
    assert worst(cuts) == pytest.approx(worst(best), rel=1e-9, abs=1e-9)


@given(COSTS, st.data())
def test_balanced_split_gives_each_stage_weights_if_possible(costs, data):
    stages = data.draw(st.integers(1, len(costs)))
    weighted = data.draw(st.lists(st.booleans(), min_size=len(costs), max_size=len(costs)))
    rows, allowed = [costs] * stages, range(1, len(costs))
    best = brute_force(rows, allowed, lambda a, b: any(weighted[a:b]))
    assert balanced_cuts(rows, weighted=weighted) == (brute_force(rows, allowed) if best is None else best)


def test_units_join_overlapping_pairs():
    assert unit_starts(6, []) == [0, 1, 2, 3, 4, 5]
    assert unit_starts(6, [(1, 3), (3, 4)]) == [0, 1, 5]
    assert unit_starts(3, [(2, 0)]) == [0]


@pytest.mark.parametrize(("costs", "stages", "glued"), [([1, 2], 3, ()), ([1, 2], 0, ()), ([1, 2], 2, [(0, 1)])])
def test_too_many_stages_are_refused(costs, stages, glued):
    with pytest.raises(ValueError, match="are possible"):
        balanced_cuts([costs] * stages, glued)


@pytest.mark.parametrize("cost", [-1.0, float("nan"), float("inf")])
def test_balanced_split_refuses_a_cost_that_is_no_number(cost):
    with pytest.raises(ValueError, match="finite and not negative"):
        balanced_cuts([[1.0, cost]] * 2)


CONF = Path(__file__).parents[3] / "conf" / "partition"
# conv1 pool1 conv2 pool2 fc1 fc2 fc3: seven layers, five of them with weights
LENET = small_images.lenet5(1, 10, (28, 28))


def cuts(rule, chain=LENET):
    return rule.cuts(chain, layer_costs(chain, [torch.zeros(2, 1, 28, 28)]), no_passes, chain.tied())


def tied():
    first, last = nn.Linear(4, 4), nn.Linear(4, 4)
    last.weight = first.weight
    chain = chain_of(nn.Sequential(nn.Linear(4, 4), first, nn.ReLU(), last, nn.Linear(4, 2)))
    return chain, layer_costs(chain, [torch.zeros(2, 4)])


def test_even_stages_are_balanced_by_time():
    chain = resnet_cifar.build(20, 3, 10)
    costs = layer_costs(chain, [torch.zeros(64, 3, 32, 32)])
    for stages in (1, 2, 4, 20):
        bounds = [0, *Even(stages).cuts(chain, costs, no_passes, chain.tied()), 20]
        times = [sum(cost.cost for cost in costs[a:b]) for a, b in itertools.pairwise(bounds)]
        assert len(times) == stages
        assert max(times) <= sum(times) / stages + max(cost.cost for cost in costs)


def test_even_stages_count_what_a_weight_costs_at_each_update():
    # the convolutions compute, the linear layer has the weights
    convolutions = [nn.Conv2d(1, 8, 5), nn.Conv2d(8, 8, 5), nn.Conv2d(8, 8, 5)]
    chain = chain_of(nn.Sequential(*convolutions, nn.Flatten(), nn.Linear(8 * 16 * 16, 10)))
    costs = layer_costs(chain, [torch.zeros(16, 1, 28, 28)])
    assert Even(2).cuts(chain, costs, no_passes, chain.tied()) == [2]
    assert Even(2).cuts(chain, costs, lambda _stages: [1e4, 1e4], []) == [3]
    assert Even(2).cuts(chain, costs, lambda _stages: [1e6, 0.0], []) == [1]


def test_even_stages_share_their_time_among_their_replicas():
    chain = chain_of(nn.Sequential(*[nn.Linear(64, 64) for _ in range(12)]))
    costs = layer_costs(chain, [torch.zeros(16, 64)])
    assert [Even(2, each).cuts(chain, costs, no_passes, []) for each in ((), (2, 1), (1, 3))] == [[6], [8], [3]]


@pytest.mark.parametrize("stages", [2, 3, 4, 5])
def test_even_stages_all_have_weights_while_there_are_enough(stages):
    bounds = itertools.pairwise([0, *cuts(Even(stages)), len(LENET)])
    assert all(any(list(layer.parameters()) for layer in LENET.layers[first:last]) for first, last in bounds)


def test_ppv_counts_weight_layers_and_passes_pooling_on():
    assert cuts(Ppv([1])) == [1]
    assert cuts(Ppv([1, 2, 3, 4])) == [1, 3, 5, 6]
    assert cuts(Ppv([2, 4], stages=3)) == [3, 6]
    assert cuts(Ppv([])) == []


def test_explicit_boundaries_are_taken_as_given():
    assert cuts(Explicit([2, 3, 6])) == [2, 3, 6]
    assert cuts(Explicit((1,), stages=2)) == [1]
    assert cuts(Explicit([])) == []


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (Even(0), "partition.stages=0: "),
        (Even(1.5), "partition.stages=1.5: "),
        (Even(stages=True), "partition.stages=true: "),
        (Even(None), "partition.stages=null: "),
        (Even(8), "partition.stages=8: the model has 7 layers; at most 7 stages"),
        (Ppv([0, 1]), "partition.ppv=[0, 1]: the model has 5 weight layers; numbers between 1 and 4 work"),
        (Ppv([2, 5]), "partition.ppv=[2, 5]: "),
        (Ppv([3, 3]), "partition.ppv=[3, 3]: must increase, such as [3]"),
        (Ppv([3, 1]), "partition.ppv=[3, 1]: must increase, such as [1, 3]"),
        (Ppv(3), "partition.ppv=3: "),
        (Ppv(["1"]), "partition.ppv=['1']: "),
        (Ppv([1], stages=3), "partition.stages=3: must be null or 2, as in partition.ppv=[1]"),
        (Explicit([7]), "partition.boundaries=[7]: the model has 7 layers; numbers between 1 and 6 work"),
        (Explicit([0, 3]), "partition.boundaries=[0, 3]: "),
        (Explicit([4, 2]), "partition.boundaries=[4, 2]: must increase, such as [2, 4]"),
        (Explicit([1.0]), "partition.boundaries=[1.0]: "),
        (Explicit([], stages=2), "partition.stages=2: must be null or 1"),
    ],
)
def test_impossible_partitions_are_refused_with_what_works(rule, message):
    assert_refused(f"^{re.escape(message)}", cuts, rule)


def test_model_of_one_layer_is_one_stage():
    chain = chain_of(nn.Sequential(nn.Linear(2, 2)))
    costs = layer_costs(chain, [torch.zeros(2, 2)])
    for rule in (Even(2), Explicit([1])):
        assert_refused(r"the model has 1 layer; ", rule.cuts, chain, costs, no_passes, chain.tied())
    assert Even(1).cuts(chain, costs, no_passes, chain.tied()) == []


def test_tied_layers_stay_in_one_stage():
    chain, costs = tied()
    assert Even(3).cuts(chain, costs, no_passes, chain.tied()) == [1, 4]
    with pytest.raises(ConfigError, match=r"stages=4: .* 1.weight; at most 3 stages"):
        Even(4).cuts(chain, costs, no_passes, chain.tied())
    with pytest.raises(ConfigError, match=r"boundaries=\[1, 3\]: .*1:Linear.* and .*3:Linear"):
        Explicit([1, 3]).cuts(chain, costs, no_passes, chain.tied())
    with pytest.raises(ConfigError, match=r"ppv=\[2\]: layers 1 .*1.weight .*untie=true"):
        Ppv([2]).cuts(chain, costs, no_passes, chain.tied())
    assert Explicit([1, 4]).cuts(chain, costs, no_passes, chain.tied()) == [1, 4]


def test_tied_layers_are_cut_apart_where_stages_may_hold_copies():
    chain, costs = tied()
    glued = chain.tied(buffers_alone=True)
    assert len(Even(5).cuts(chain, costs, no_passes, glued)) == 4
    assert Explicit([2]).cuts(chain, costs, no_passes, glued) == [2]


def test_layers_that_share_a_buffer_are_never_cut_apart():
    norm = nn.BatchNorm1d(4, affine=False)
    chain = chain_of(nn.Sequential(norm, nn.Linear(4, 4), norm))
    costs = layer_costs(chain, [torch.zeros(2, 4)])
    with pytest.raises(ConfigError, match=r"share a buffer"):
        Explicit([1]).cuts(chain, costs, no_passes, chain.tied(buffers_alone=True))
    with pytest.raises(ConfigError, match=r"buffers; at most 1 stage$"):
        Even(2).cuts(chain, costs, no_passes, chain.tied(buffers_alone=True))


@pytest.mark.parametrize(
    ("name", "settings", "expected"),
    [
        ("even", {"stages": 1}, []),
        ("ppv", {"ppv": [2]}, [3]),
        ("explicit", {"boundaries": [2, 4], "stages": 3}, [2, 4]),
    ],
)
def test_partition_choices_build_their_rules(name, settings, expected):
    config = OmegaConf.merge(OmegaConf.load(CONF / f"{name}.yaml"), settings)
    rule = instantiate(config, _convert_="all")
    assert rule.name == name
    assert cuts(rule) == expected
