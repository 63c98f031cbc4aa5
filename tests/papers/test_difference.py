"""What two groups of runs tell of each other."""

from dataclasses import replace

import pytest

from papers.difference import Difference, Relation, shown
from papers.results import MeasuredGroup

OF_MEANS = (Relation.BETTER, Relation.LIKE, Relation.WORSE)


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


def timed(rate, *, runs=3, spread=1.0):
    deviations = {"samples_per_second": spread} if runs > 1 else {}
    means = {"samples_per_second": rate, "stage_bytes": rate}
    return MeasuredGroup(f"{rate}", runs, {"completed": runs}, means, deviations, 0)


def tells(first, other, metric="top1", **more):
    return [Difference(first, other, metric, **more).shows(each) for each in OF_MEANS]


@pytest.mark.parametrize(
    ("ours", "expected"),
    [
        ((81.0, 71.1, 61.0), [True, True, False]),
        ((79.0, 69.1, 59.0), [False, True, True]),
        ((76.0, 66.1, 56.0), [False, False, True]),
        ((80.0, 70.1, 59.9), [None, True, None]),
        ((90.0, 70.0, 50.0), [None, None, None]),
    ],
)
def test_common_seeds_are_compared_in_pairs(ours, expected):
    other = trained("b", 80.0, 70.0, 60.0)  # the margin is 3 % of 70
    assert tells(trained("a", *ours), other) == expected


def test_more_seeds_narrow_the_interval_and_not_the_margin():
    ours, other = (79.5, 77.5, 80.5, 78.5), (80.0, 80.0, 81.0, 81.0)
    few, many = (Difference(trained("a", *ours * count), trained("b", *other * count), "top1") for count in (1, 4))
    assert few.margin == many.margin == pytest.approx(0.03 * 80.5)
    assert [few.shows(Relation.LIKE), many.shows(Relation.LIKE)] == [None, True]
    assert [few.shows(Relation.WORSE), many.shows(Relation.WORSE)] == [None, True]


def test_margin_of_the_paper_replaces_three_percent():
    ours, other = trained("a", 79.0, 69.1, 59.0), trained("b", 80.0, 70.0, 60.0)
    assert tells(ours, other, within=0.5)[1] is False
    assert tells(ours, other, within=1.5)[1] is True


def test_reading_has_the_gain_its_interval_and_the_margin():
    ours, other = trained("a", 79.0, 69.1, 59.0), trained("b", 80.0, 70.0, 60.0)
    found = Difference(ours, other, "top1")
    assert found.reading(Relation.LIKE) == "gain -0.97, 95 % -1.11 to -0.82, paired, 3 seeds, margin 2.10"
    assert found.word(Relation.LIKE) == "within the margin of"
    assert Difference(group("a"), group("b"), "top1").reading(Relation.BETTER).endswith("unpaired, 3 and 3 runs")


def test_methods_that_computed_the_same_bits_are_not_compared():
    first, other = trained("a", 80.0, 70.0), trained("b", 80.0, 70.0)
    assert tells(first, other) == [None] * 3
    assert "the same bits" in Difference(first, other, "top1").reading(Relation.LIKE)
    assert not first.same_bits(trained("b", 80.0, 70.0, losses=[20.0, 30.1]))


@pytest.mark.parametrize(
    ("ours", "other"),
    [
        (group("a", completed=0, diverged=3), group("b", completed=0, diverged=3)),
        (group("a", completed=2, diverged=1), group("b")),
        (group("a", completed=1), group("b", 10.0)),
        (group("a", loss=1.9), group("b", 70.0, loss=1.9)),
    ],
    ids=["both diverged", "a part diverged", "one run alone", "neither learned"],
)
def test_runs_that_cannot_be_compared_tell_nothing(ours, other):
    assert tells(ours, other) == [None] * 3


@pytest.mark.parametrize("status", ["interrupted", "failed"])
def test_runs_that_were_broken_off_tell_nothing(status):
    broken = replace(group("broken", completed=0), ended={status: 1})
    some = replace(group("some", 90.0), ended={"completed": 3, status: 1})
    for first, other in ((broken, group("whole")), (group("whole"), broken), (some, group("whole"))):
        assert [Difference(first, other, "top1").shows(relation) for relation in Relation] == [None] * len(Relation)


def test_runs_that_diverged_are_behind_those_that_did_not():
    lost = group("a", completed=0, diverged=3)
    assert tells(lost, group("b")) == [False, False, True]
    assert tells(group("b"), lost) == [True, True, False]


def test_partly_diverged_method_is_worse_if_rest_is_worse():
    part, whole = group("a", 60.0, completed=2, diverged=1), group("b")
    assert tells(part, whole) == [False, False, True]


def test_partly_diverged_method_is_not_separated_from_one_that_always_diverges():
    part, lost = group("a", completed=2, diverged=1), group("c", completed=0, diverged=3)
    assert tells(part, lost) == tells(lost, part) == [None] * 3
    assert Difference(part, lost, "top1").reading(Relation.BETTER).startswith("no interval")


def test_epochs_of_partly_missed_target_beat_none():
    some, all_ = (
        MeasuredGroup(name, 3, {"completed": 3}, {"target_epochs": epochs}, {"target_epochs": 0.1}, reached)
        for name, epochs, reached in (("some", 5.0, 2), ("all", 9.0, 3))
    )
    none = MeasuredGroup("none", 0, {"diverged": 3}, {}, {}, 0)
    assert [tells(some, other, "target_epochs") for other in (all_, none)] == [[None] * 3] * 2
    assert tells(all_, none, "target_epochs") == [True, True, False]
    assert shown(some, "target_epochs") == "some 5.00 ± 0.10 (2 of 3 runs)"


def test_times_that_were_not_kept_are_no_loss():
    kept, untimed = timed(100.0), replace(timed(90.0), means={"top1": 80.0})
    found = Difference(kept, untimed, "samples_per_second")
    assert [found.shows(each) for each in OF_MEANS] == [None] * 3
    assert found.reading(Relation.BETTER) == "samples/s of 90.0 was not measured, or not kept"
    reached, missed = replace(untimed, reached=2), untimed
    fast = replace(kept, means={"target_s": 9.0}, reached=3)
    assert [Difference(fast, other, "target_s").shows(Relation.BETTER) for other in (reached, missed)] == [None, True]


def test_one_timing_tells_nothing_however_far_it_is_off():
    found = Difference(timed(200.0, runs=1), timed(100.0, runs=1), "samples_per_second")
    assert [found.shows(each) for each in OF_MEANS] == [None] * 3
    assert "one timing" in found.reading(Relation.BETTER)


@pytest.mark.parametrize(
    ("rate", "expected"),
    [
        (120.0, [True, True, False]),
        (105.0, [False, True, False]),
        (95.0, [False, True, False]),
        (80.0, [False, False, True]),
        (90.0, [False, None, None]),
    ],
)
def test_timings_are_better_or_worse_from_a_tenth_on(rate, expected):
    assert tells(timed(rate), timed(100.0), "samples_per_second") == expected


def test_time_to_a_target_must_exceed_the_margin_of_times():
    slow, close, fast = (
        MeasuredGroup(f"{s}", 3, {"completed": 3}, {"target_s": s}, {"target_s": 0.1}, 3) for s in (100.0, 97.0, 80.0)
    )
    assert tells(close, slow, "target_s") == [False, True, False]
    assert tells(fast, slow, "target_s") == [True, True, False]


def test_bytes_do_not_scatter_but_a_small_difference_is_no_gain():
    assert tells(timed(97.0, runs=1), timed(100.0, runs=1), "stage_bytes") == [False, True, False]
    assert tells(timed(80.0, runs=1), timed(100.0, runs=1), "stage_bytes") == [True, True, False]
    assert tells(timed(120.0, runs=1), timed(100.0, runs=1), "stage_bytes") == [False, False, True]


@pytest.mark.parametrize(
    ("ours", "other", "fails", "word"),
    [
        (group("a", completed=0, diverged=3), group("b"), True, "failed, unlike"),
        (group("a", 10.0, loss=2.0), group("b"), True, "failed, unlike"),
        (group("a", 60.0), group("b"), False, "did not fail, nor did"),
        (group("a", completed=2, diverged=1), group("b"), None, "against"),
        (group("a", completed=0, diverged=3), group("b", completed=0, diverged=3), None, "against"),
    ],
)
def test_method_fails_if_none_of_its_runs_learned_but_all_others(ours, other, fails, word):
    found = Difference(ours, other, "top1")
    assert found.shows(Relation.FAILS) is fails
    assert found.word(Relation.FAILS) == word


def test_one_run_that_fails_tells_nothing():
    for lost, learned in ((1, 3), (3, 1)):
        found = Difference(group("a", completed=0, diverged=lost), group("b", completed=learned), "top1")
        assert found.shows(Relation.FAILS) is None
        assert found.reading(Relation.FAILS) == "one run does not show scatter"


def test_floor_says_up_to_which_value_nothing_was_learned():
    assert Difference(group("a", 0.4), group("b", 20.0), "top1", floor={"top1": 1.0}).shows(Relation.FAILS) is True
    assert Difference(group("a", 5.0), group("b", 20.0), "top1", floor={"top1": 1.0}).shows(Relation.FAILS) is False
    assert Difference(group("a", 0.4), group("b", 0.9), "top1", floor={"top1": 1.0}).shows(Relation.FAILS) is None
    limits = {"best_bleu": 1.0, "best_top1": 30.5}
    reading = Difference(group("a"), group("b"), "best_bleu", floor=limits).reading(Relation.FAILS)
    assert reading == "it fails with a best bleu of 1 or a best top1 of 30.5 or less"


def test_method_that_is_above_one_floor_of_two_has_learned_nothing():
    low, high = group("a", 5.0, loss=1.0), group("b", 20.0, loss=2.0)
    assert Difference(low, high, "top1", floor={"top1": 1.0, "loss": 1.5}).shows(Relation.FAILS) is True
    assert Difference(low, high, "top1", floor={"top1": 1.0, "loss": 0.5}).shows(Relation.FAILS) is False


@pytest.mark.parametrize(
    ("ours", "other", "fails"), [(0, 3, True), (3, 3, False), (1, 3, None), (0, 2, None), (0, 0, None)]
)
def test_a_group_fails_a_target_if_none_of_its_runs_reach_it_but_all_others(ours, other, fails):
    first, second = (
        replace(each, reached=reached, means=each.means | ({"target_epochs": 4.0} if reached else {}))
        for each, reached in ((group("a"), ours), (group("b"), other))
    )
    assert Difference(first, second, "target_epochs").shows(Relation.FAILS) is fails


def test_runs_that_have_not_learned_are_worse():
    assert Difference(group("a"), group("b", 10.0, loss=2.0), "top1").shows(Relation.BETTER)
    assert shown(group("c", completed=2, diverged=1), "top1") == "c 80.0 ± 1.0 (2 runs, 1 diverged)"
