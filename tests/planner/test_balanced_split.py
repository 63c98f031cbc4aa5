import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipetrain.planner.balanced_split import balanced, units

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


@given(COSTS, st.data())
def test_balanced_split_is_the_smallest_of_the_best_splits(costs, data):
    stages = data.draw(st.integers(1, len(costs)))
    assert balanced([costs] * stages) == brute_force([costs] * stages, range(1, len(costs)))


@given(COSTS.filter(lambda costs: len(costs) > 1), st.data())
def test_balanced_split_keeps_glued_layers_together(costs, data):
    layer = st.integers(0, len(costs) - 1)
    glued = data.draw(st.lists(st.tuples(layer, layer), max_size=2))
    starts = units(len(costs), glued)
    stages = data.draw(st.integers(1, len(starts)))
    cuts = balanced([costs] * stages, glued)
    assert cuts == brute_force([costs] * stages, starts[1:])
    assert not any(min(pair) < cut <= max(pair) for pair in glued for cut in cuts)


@given(st.lists(st.floats(0, 1e3), min_size=1, max_size=8), st.data())
def test_balanced_split_takes_times_as_well_as_whole_numbers(costs, data):
    stages = data.draw(st.integers(1, len(costs)))
    cuts = balanced([costs] * stages)
    best = brute_force([costs] * stages, range(1, len(costs)))

    def worst(cuts):
        return max(sum(costs[a:b]) for a, b in itertools.pairwise([0, *cuts, len(costs)]))

    assert len(cuts) == stages - 1
    assert worst(cuts) == pytest.approx(worst(best), rel=1e-9, abs=1e-9)


@given(st.integers(1, 8), st.data())
def test_balanced_split_knows_what_a_layer_costs_at_each_stage(layers, data):
    stages = data.draw(st.integers(1, layers))
    row = st.lists(st.integers(0, 9), min_size=layers, max_size=layers)
    rows = data.draw(st.lists(row, min_size=stages, max_size=stages))
    assert balanced(rows) == brute_force(rows, range(1, layers))


@given(COSTS, st.data())
def test_balanced_split_gives_every_stage_a_layer_with_weights_if_there_are_enough(costs, data):
    stages = data.draw(st.integers(1, len(costs)))
    weighted = data.draw(st.lists(st.booleans(), min_size=len(costs), max_size=len(costs)))
    rows, allowed = [costs] * stages, range(1, len(costs))
    best = brute_force(rows, allowed, lambda a, b: any(weighted[a:b]))
    assert balanced(rows, weighted=weighted) == (brute_force(rows, allowed) if best is None else best)


def test_balanced_split_of_an_example_drawn_by_hand():
    #                1  2  3 | 4  5 | 6
    assert balanced([[1, 2, 3, 4, 5, 6]] * 3) == [3, 5]
    assert balanced([[1, 1, 1, 1, 10]] * 3) == [1, 4]
    assert balanced([[0, 0, 0]] * 2) == [1]
    assert balanced([[5]]) == []


def test_units_join_overlapping_pairs():
    assert units(6, []) == [0, 1, 2, 3, 4, 5]
    assert units(6, [(1, 3), (3, 4)]) == [0, 1, 5]
    assert units(3, [(2, 0)]) == [0]


@pytest.mark.parametrize(("costs", "stages", "glued"), [([1, 2], 3, ()), ([1, 2], 0, ()), ([1, 2], 2, [(0, 1)])])
def test_too_many_stages_are_refused(costs, stages, glued):
    with pytest.raises(ValueError, match="are possible"):
        balanced([costs] * stages, glued)


@pytest.mark.parametrize("cost", [-1.0, float("nan"), float("inf")])
def test_balanced_split_refuses_a_cost_that_is_no_number(cost):
    with pytest.raises(ValueError, match="finite and not negative"):
        balanced([[1.0, cost]] * 2)
