"""Grids of settings on losses that are made up."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipetrain.reporting.comparison.tuning import FACTOR, Grid, Search, around, search

RATES = around("lr", 0.1)
RATE = Grid((RATES,), extends=True)


def rate(candidate):
    return float(candidate[0].partition("=")[2])


def searched(grid, loss_of):
    """The search at its end, and its candidates in the order in which they ran."""
    losses = {}
    while missing := (found := search(grid, losses.get)).missing:
        assert not set(missing) & set(losses)
        losses.update({candidate: loss_of(candidate) for candidate in missing})
    return found, list(losses)


def test_grid_around_a_rate_has_three_values_a_factor_apart():
    assert RATES == ("lr=0.1", "lr=0.0333", "lr=0.3")


def test_rates_go_on_while_the_last_one_is_the_best():
    found, ran = searched(RATE, lambda candidate: abs(math.log(rate(candidate) / 5)))
    assert sorted(map(rate, ran)) == [0.0333, 0.1, 0.3, 0.9, 2.7, 8.1, 24.3]
    assert found.best == ("lr=8.1",)


def test_configured_value_is_kept_where_all_are_equally_good():
    found, ran = searched(RATE, lambda _: 0.0)
    assert (found.best, len(ran)) == (("lr=0.1",), 3)


def test_given_values_do_not_go_on():
    found, ran = searched(Grid((("lr=1", "lr=2", "lr=3"),)), lambda candidate: -rate(candidate))
    assert [rate(each) for each in ran] == [1, 2, 3]
    assert found.best == ("lr=3",)


def test_rates_become_smaller_while_all_of_them_diverge():
    found, _ = searched(RATE, lambda candidate: math.inf if rate(candidate) > 0.002 else 1.0)
    assert found.best == ("lr=0.00123",)


def test_search_in_which_all_diverge_ends_without_a_choice():
    found, ran = searched(RATE, lambda _: math.inf)
    assert (found.best, len(ran)) == (None, 9)


def test_single_candidate_is_chosen_without_a_trial():
    assert search(Grid((("lr=0.1",), ("momentum=0.9",))), None) == Search(best=("lr=0.1", "momentum=0.9"))


@pytest.mark.parametrize("best", [0.3, 0.9])
def test_words_that_are_no_numbers_are_tuned_beside_rates(best):
    grid = Grid((RATES, ("betas=[0.9,0.99]", "betas=[0.5,0.99]")), extends=True)
    found, _ = searched(grid, lambda candidate: abs(rate(candidate) - best) + ("[0.9" in candidate[1]))
    assert found.best == (f"lr={best}", "betas=[0.5,0.99]")


@given(st.integers(2, 7), st.booleans(), st.randoms(use_true_random=False))
def test_search_ends_with_the_least_loss(count, extends, dice):
    made_up = {}
    grid = Grid((tuple(f"lr={FACTOR**power}" for power in range(count)),), extends)
    found, ran = searched(
        grid, lambda each: made_up.setdefault(each, math.inf if dice.random() < 0.3 else dice.random())
    )
    assert count <= len(ran) == len(set(ran)) <= (9 if extends else count)
    assert made_up.get(found.best, math.inf) == min(made_up.values())


@given(st.integers(0, 9), st.integers(0, 1000))
def test_search_goes_on_from_any_part_of_its_losses(kept, seed):
    dice = random.Random(seed)
    made_up = {}
    whole, ran = searched(RATE, lambda each: made_up.setdefault(each, dice.choice((math.inf, dice.random()))))
    losses = {candidate: made_up[candidate] for candidate in ran[:kept]}
    while missing := (found := search(RATE, losses.get)).missing:
        losses.update(
            {candidate: made_up[candidate] for candidate in missing}
        )  # none that the whole search has not run
    assert found == whole
