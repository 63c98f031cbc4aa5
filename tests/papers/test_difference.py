"""What two groups of runs tell of each other."""

from dataclasses import replace

import pytest

from papers.difference import Difference, Relation, shown
from papers.results import MeasuredGroup

SIGNS = {True: "+", False: "-", None: "?"}
RATE = "samples_per_second"


def trained(name, *top1, losses=None):
    """Completed runs under seeds 0, 1, …, whose training began with a loss of 2."""
    losses = losses or [100 - value for value in top1]
    seeds = {seed: {"top1": value, "loss": loss} for seed, (value, loss) in enumerate(zip(top1, losses, strict=True))}
    mean = sum(top1) / len(top1)
    deviation = (sum((value - mean) ** 2 for value in top1) / (len(top1) - 1)) ** 0.5
    return MeasuredGroup(name, len(top1), {"completed": len(top1)}, {"top1": mean}, {"top1": deviation}, 0, seeds)


def group(name, top1=80.0, *, completed=3, diverged=0, loss=0.5):
    """Runs of which only mean and a deviation of 1 are known."""
    ended = {"completed": completed, "diverged": diverged}
    means = {"top1": top1, "loss": loss, "first_loss": 2.0} if completed else {}
    return MeasuredGroup(name, completed, ended, means, {"top1": 1.0} if completed > 1 else {}, 0)


def timed(value, *metrics, runs=3, spread=1.0, reached=0):
    """Completed runs with one value of each of these metrics."""
    metrics = metrics or (RATE, "stage_bytes")
    deviations = dict.fromkeys(metrics, spread) if runs > 1 else {}
    return MeasuredGroup(f"{value}", runs, {"completed": runs}, dict.fromkeys(metrics, value), deviations, reached)


def broken(name, status, top1=None, completed=0):
    return replace(group(name, top1, completed=completed), ended={"completed": completed, status: 1})


def tells(first, other, metric="top1", **more):
    """Of `BETTER`, `LIKE` and `WORSE`: + where it is shown, - where it is shown not to be, ? where it is open."""
    found = Difference(first, other, metric, **more)
    return "".join(SIGNS[found.shows(each)] for each in (Relation.BETTER, Relation.LIKE, Relation.WORSE))


def fails(first, other, metric="top1", **more):
    return SIGNS[Difference(first, other, metric, **more).shows(Relation.FAILS)]


LOST, PART = group("lost", completed=0, diverged=3), group("part", completed=2, diverged=1)
SOME, ALL = (timed(epochs, "target_epochs", spread=0.1, reached=n) for epochs, n in ((5.0, 2), (9.0, 3)))
AT_80 = trained("b", 80.0, 70.0, 60.0)  # whose margin is 3 % of 70
NEAR_80 = trained("a", 79.0, 69.1, 59.0)


@pytest.mark.parametrize(
    ("first", "other", "metric", "expected"),
    [
        (trained("a", 81.0, 71.1, 61.0), AT_80, "top1", "++-"),
        (NEAR_80, AT_80, "top1", "-++"),
        (trained("a", 76.0, 66.1, 56.0), AT_80, "top1", "--+"),
        (trained("a", 80.0, 70.1, 59.9), AT_80, "top1", "?+?"),
        (trained("a", 90.0, 70.0, 50.0), AT_80, "top1", "???"),
        (trained("a", 80.0, 70.0), trained("b", 80.0, 70.0), "top1", "???"),  # the same bits
        (LOST, LOST, "top1", "???"),
        (PART, group("b"), "top1", "???"),
        (group("a", completed=1), group("b", 10.0), "top1", "???"),
        (group("a", loss=1.9), group("b", 70.0, loss=1.9), "top1", "???"),  # neither learned
        (LOST, group("b"), "top1", "--+"),
        (group("b"), LOST, "top1", "++-"),
        (group("a", 60.0, completed=2, diverged=1), group("b"), "top1", "--+"),
        (PART, LOST, "top1", "???"),
        (LOST, PART, "top1", "???"),
        (SOME, ALL, "target_epochs", "???"),
        (SOME, LOST, "target_epochs", "???"),
        (ALL, LOST, "target_epochs", "++-"),
        (timed(100.0), timed(90.0, "top1"), RATE, "???"),
        (timed(200.0, runs=1), timed(100.0, runs=1), RATE, "???"),
        *((timed(rate), timed(100.0), RATE, word)
          for rate, word in ((120.0, "++-"), (105.0, "-+-"), (95.0, "-+-"), (80.0, "--+"), (90.0, "-??"))),
        *((timed(bytes_, runs=1), timed(100.0, runs=1), "stage_bytes", word)
          for bytes_, word in ((97.0, "-+-"), (80.0, "++-"), (120.0, "--+"))),
        *((timed(seconds, "target_s", spread=0.1, reached=3), timed(100.0, "target_s", spread=0.1, reached=3),
           "target_s", word) for seconds, word in ((97.0, "-+-"), (80.0, "++-"))),
    ],
)  # fmt: skip
def test_groups_tell_no_more_than_seeds_margins_and_losses_allow(first, other, metric, expected):
    assert tells(first, other, metric) == expected


def test_more_seeds_narrow_the_interval_and_not_the_margin():
    ours, other = (79.5, 77.5, 80.5, 78.5), (80.0, 80.0, 81.0, 81.0)
    few, many = ((trained("a", *ours * count), trained("b", *other * count)) for count in (1, 4))
    assert Difference(*few, "top1").margin == Difference(*many, "top1").margin == pytest.approx(0.03 * 80.5)
    assert (tells(*few)[1:], tells(*many)[1:]) == ("??", "++")


@pytest.mark.parametrize(("within", "like"), [(0.5, "-"), (1.5, "+")])
def test_margin_of_the_paper_replaces_three_percent(within, like):
    assert tells(NEAR_80, AT_80, within=within)[1] == like


@pytest.mark.parametrize(
    ("first", "other", "metric", "relation", "words"),
    [
        (NEAR_80, AT_80, "top1", Relation.LIKE, "gain -0.97, 95 % -1.11 to -0.82, paired, 3 seeds, margin 2.10"),
        (group("a"), group("b"), "top1", Relation.BETTER, "unpaired, 3 and 3 runs"),
        (trained("a", 80.0, 70.0), trained("b", 80.0, 70.0), "top1", Relation.LIKE, "the same bits"),
        (PART, LOST, "top1", Relation.BETTER, "no interval"),
        (timed(100.0), timed(90.0, "top1"), RATE, Relation.BETTER, "samples/s of 90.0 was not measured"),
        (timed(200.0, runs=1), timed(100.0, runs=1), RATE, Relation.BETTER, "one timing"),
        (group("a", completed=0, diverged=1), group("b"), "top1", Relation.FAILS, "one run does not"),
    ],
)
def test_reading_says_what_the_verdict_rests_on(first, other, metric, relation, words):
    assert words in Difference(first, other, metric).reading(relation)


def test_runs_with_other_losses_have_other_bits():
    assert not trained("a", 80.0, 70.0).same_bits(trained("b", 80.0, 70.0, losses=[20.0, 30.1]))


@pytest.mark.parametrize("status", ["interrupted", "failed"])
def test_runs_that_were_broken_off_tell_nothing(status):
    none, some = broken("none", status), broken("some", status, 90.0, completed=3)
    for first, other in ((none, group("whole")), (group("whole"), none), (some, group("whole"))):
        assert tells(first, other) + fails(first, other) == "????"


def test_times_that_were_not_kept_are_no_loss():
    kept, untimed = timed(9.0, "target_s", reached=3), timed(90.0, "top1")
    found = [tells(kept, other, "target_s")[0] for other in (replace(untimed, reached=2), untimed)]
    assert found == ["?", "+"]


def test_group_is_shown_with_its_spread_and_its_losses():
    assert shown(SOME, "target_epochs") == "5.0 5.00 ± 0.10 (2 of 3 runs)"
    assert shown(PART, "top1") == "part 80.0 ± 1.0 (2 runs, 1 diverged)"


@pytest.mark.parametrize(
    ("ours", "other", "expected", "word"),
    [
        (LOST, group("b"), "+", "failed, unlike"),
        (group("a", 10.0, loss=2.0), group("b"), "+", "failed, unlike"),
        (group("a", 60.0), group("b"), "-", "did not fail, nor did"),
        (PART, group("b"), "?", "against"),
        (LOST, LOST, "?", "against"),
        (group("a", completed=0, diverged=1), group("b"), "?", "against"),
        (LOST, group("b", completed=1), "?", "against"),
    ],
)
def test_method_fails_if_none_of_its_runs_learned_but_all_others(ours, other, expected, word):
    assert fails(ours, other) == expected
    assert Difference(ours, other, "top1").word(Relation.FAILS) == word


@pytest.mark.parametrize(
    ("ours", "other", "floor", "expected"),
    [
        (group("a", 0.4), group("b", 20.0), {"top1": 1.0}, "+"),
        (group("a", 5.0), group("b", 20.0), {"top1": 1.0}, "-"),
        (group("a", 0.4), group("b", 0.9), {"top1": 1.0}, "?"),
        (group("a", 5.0, loss=1.0), group("b", 20.0, loss=2.0), {"top1": 1.0, "loss": 1.5}, "+"),
        (group("a", 5.0, loss=1.0), group("b", 20.0, loss=2.0), {"top1": 1.0, "loss": 0.5}, "-"),
    ],
)
def test_floor_says_up_to_which_value_nothing_was_learned(ours, other, floor, expected):
    assert fails(ours, other, floor=floor) == expected


def test_reading_of_a_failure_says_all_floors():
    found = Difference(group("a"), group("b"), "best_bleu", floor={"best_bleu": 1.0, "best_top1": 30.5})
    assert found.reading(Relation.FAILS) == "it fails with a best bleu of 1 or a best top1 of 30.5 or less"


@pytest.mark.parametrize(
    ("ours", "other", "expected"), [(0, 3, "+"), (3, 3, "-"), (1, 3, "?"), (0, 2, "?"), (0, 0, "?")]
)
def test_a_group_fails_a_target_if_none_of_its_runs_reach_it_but_all_others(ours, other, expected):
    first, second = (
        replace(each, reached=reached, means=each.means | ({"target_epochs": 4.0} if reached else {}))
        for each, reached in ((group("a"), ours), (group("b"), other))
    )
    assert fails(first, second, "target_epochs") == expected


def test_runs_that_have_not_learned_are_worse():
    assert tells(group("a"), group("b", 10.0, loss=2.0))[0] == "+"
