"""Successive halving on losses that are made up."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipetrain.reporting.comparison.halving import FACTOR, Axis, rungs_of, search

RATE = Axis.around("lr", 0.1)


def rate(candidate):
    return float(candidate[0].partition("=")[2])


def searched(axes, loss_of, steps=16):
    """The search at its end, and its trials in the order in which they ran."""
    losses, ran = {}, []
    while trials := (found := search(axes, rungs_of(axes, steps), losses.get)).trials:
        assert not set(trials) & set(losses)
        for trial in trials:
            losses[trial] = loss_of(*trial)
            ran.append(trial)
    return found, ran


def test_grid_around_a_rate_has_three_values_a_factor_apart():
    assert RATE.values == ("0.0333", "0.1", "0.3")


def test_better_half_trains_longer_and_the_best_is_chosen():
    axes = [Axis("lr", ("1", "2", "3", "4", "5"))]
    found, ran = searched(axes, lambda candidate, _: abs(rate(candidate) - 4))
    by_length = {steps: [rate(each) for each, length in ran if length == steps] for steps in (4, 8, 16)}
    assert by_length == {4: [1, 2, 3, 4, 5], 8: [4, 3, 5], 16: [4, 3]}
    assert found.best == ("lr=4",)


def test_axis_is_extended_while_its_last_value_is_the_best():
    found, ran = searched([RATE], lambda candidate, _: abs(math.log(rate(candidate) / 5)))
    assert [rate(each) for each, steps in ran if steps == 8] == [0.0333, 0.1, 0.3, 0.9, 2.7, 8.1, 24.3]
    assert found.best == ("lr=8.1",)
    assert not found.at_end


def test_setting_without_effect_is_not_extended_and_reported():
    found, ran = searched([RATE], lambda _, steps: 1 / steps)
    assert len({each for each, _ in ran}) == 3
    assert found.without_effect
    assert not searched([RATE], lambda candidate, _: rate(candidate))[0].without_effect
    assert not searched([RATE], lambda _, __: math.inf)[0].without_effect


def test_given_values_are_not_extended_but_their_end_is_reported():
    found, ran = searched([Axis("lr", ("1", "2", "3"))], lambda candidate, _: -rate(candidate))
    assert {rate(each) for each, _ in ran} == {1, 2, 3}
    assert found.at_end == ["lr=3"]


def test_all_go_on_from_a_round_in_which_none_has_learned():
    found, ran = searched([RATE], lambda candidate, steps: 1.0 if steps == 8 else -min(rate(candidate), 0.3))
    assert {candidate for candidate, steps in ran if steps == 16} >= {("lr=0.0333",), ("lr=0.1",), ("lr=0.3",)}
    assert found.best == ("lr=0.3",)
    assert not found.without_effect
    assert searched([RATE], lambda *_: 1.0)[0].without_effect


def test_rates_become_smaller_while_all_of_them_diverge():
    found, _ = searched([RATE], lambda candidate, _: math.inf if rate(candidate) > 0.002 else 1.0)
    assert found.best == ("lr=0.00123",)


def test_search_in_which_all_diverge_ends_without_a_choice():
    found, ran = searched([RATE], lambda *_: math.inf)
    assert found.best is None
    assert len(ran) == 9


def test_candidate_that_diverges_in_a_longer_run_is_not_chosen():
    def loss_of(candidate, steps):
        return math.inf if steps == 16 and rate(candidate) > 0.2 else -min(rate(candidate), 1.0)

    assert searched([RATE], loss_of)[0].best == ("lr=0.1",)


def test_single_candidate_is_chosen_without_a_trial():
    assert searched([Axis("lr", ("0.1",)), Axis("momentum", ("0.9",))], None)[0].best == ("lr=0.1", "momentum=0.9")


def test_words_that_are_no_numbers_are_tuned_beside_rates():
    axes = [RATE, Axis("betas", ("[0.9,0.99]", "[0.5,0.99]"))]
    found, _ = searched(axes, lambda candidate, _: abs(rate(candidate) - 0.3) + ("[0.5" in candidate[1]))
    assert found.best == ("lr=0.3", "betas=[0.9,0.99]")


@pytest.mark.parametrize(("values", "rungs"), [("1", [16]), ("12", [16]), ("123", [8, 16]), ("12345", [4, 8, 16])])
def test_last_round_has_all_steps_and_each_before_half(values, rungs):
    assert rungs_of([Axis("lr", tuple(values))], 16) == rungs


@given(st.integers(1, 7), st.booleans(), st.integers(1, 40), st.randoms(use_true_random=False))
def test_search_ends_with_the_least_loss_of_its_last_round(count, extends, steps, dice):
    axes = [Axis("lr", tuple(str(FACTOR**power) for power in range(count)), extends)]
    made_up = {}

    def loss_of(candidate, length):
        return made_up.setdefault((candidate, length), math.inf if dice.random() < 0.3 else dice.random())

    found, ran = searched(axes, loss_of, steps)
    assert len(ran) == len(set(ran)) <= 3 * (count + 6)
    if not ran:
        assert count == 1
        return
    last = max(length for _, length in ran)
    assert last <= steps
    losses = {candidate: loss_of(candidate, length) for candidate, length in ran if length == last}
    if found.best is not None and found.best in losses:
        assert losses[found.best] == min(losses.values()) < math.inf


@given(st.integers(0, 60), st.integers(0, 1000))
def test_search_goes_on_from_any_part_of_its_losses(kept, seed):
    dice = random.Random(seed)
    made_up = {}
    whole, ran = searched([RATE], lambda *trial: made_up.setdefault(trial, dice.choice((math.inf, dice.random()))))
    losses = {trial: made_up[trial] for trial in ran[:kept]}
    while trials := (found := search([RATE], rungs_of([RATE], 16), losses.get)).trials:
        losses.update({trial: made_up[trial] for trial in trials})  # none that the whole search has not run
    assert found == whole
