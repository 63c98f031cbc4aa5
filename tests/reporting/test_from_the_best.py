"""Differences from the best of several samples, which hold together."""

import math
import random
import statistics

import pytest

from pipetrain.reporting import seed_statistics
from pipetrain.reporting.from_the_best import critical_value, differences_from_best
from pipetrain.reporting.seed_statistics import difference, t_quantile


def seeds(*values, first=0):
    return dict(enumerate(values, first))


def share_of_pages_with_a_claim(rows, runs, pages, deviations=(1.0,), shared=0.0):
    """The share of pages of rows with equal means on which some row is said to differ from the best."""
    dice, claims = random.Random(0), 0
    for _ in range(pages):
        luck = [dice.gauss(0, shared) for _ in range(runs)]
        page = [
            seeds(*(each + dice.gauss(0, deviations[row % len(deviations)]) for each in luck)) for row in range(rows)
        ]
        best, *others = sorted(page, key=lambda row: statistics.fmean(row.values()))
        claims += any(each.decided for each in differences_from_best(best, others))
    return claims / pages


def test_one_other_sample_has_the_interval_of_two():
    best, other = seeds(1.0, 2.0, 4.0), seeds(3.0, 5.0, 5.5)
    assert differences_from_best(best, [other]) == [difference(other, best)]
    assert differences_from_best(best, []) == []


@pytest.mark.parametrize("runs", [2, 3, 5, 30])
def test_critical_value_of_two_samples_is_students(runs):
    assert critical_value(2, runs) == pytest.approx(t_quantile(runs - 1), rel=0.06)


def test_critical_value_grows_with_the_samples_and_falls_with_the_seeds():
    values = [[critical_value(samples, runs) for runs in (2, 3, 5, 8)] for samples in (3, 5, 17)]
    assert all(row == sorted(row, reverse=True) for row in values)
    assert all(list(column) == sorted(column) for column in zip(*values, strict=True))
    # of very many seeds: the range of five normal values, 3.858 (table of the studentized range), over sqrt(2)
    assert critical_value(5, 400) == pytest.approx(3.858 / math.sqrt(2), rel=0.03)


def test_interval_reaches_the_critical_value_in_standard_errors():
    best = seeds(0.0, 0.0, 0.0)
    quiet, usual, loud = seeds(5.0, 5.1, 5.2), seeds(4.0, 5.0, 6.0), seeds(1.0, 5.0, 9.0)
    found = differences_from_best(best, [quiet, usual, loud])
    errors = [each / math.sqrt(3) for each in (1.0, 1.0, 4.0)]
    assert [each.half for each in found] == pytest.approx([critical_value(4, 3) * max(error, 0) for error in errors[:2]]
        + [max(critical_value(4, 3), t_quantile(2)) * errors[2]])  # fmt: skip


def test_single_seed_stays_undecided_and_widens_no_other_row():
    best, row, lone = seeds(0.0, 0.1, 0.2), seeds(5.0, 5.3, 5.1), seeds(99.0)
    assert differences_from_best(best, [row, lone]) == [difference(row, best), difference(lone, best)]


def test_interval_is_never_narrower_than_that_of_the_two_rows():
    dice = random.Random(3)
    for _ in range(50):
        rows = [seeds(*(dice.gauss() for _ in range(dice.randint(2, 5)))) for _ in range(4)]
        for row, found in zip(rows[1:], differences_from_best(rows[0], rows[1:]), strict=True):
            alone = difference(row, rows[0])
            assert found.low <= alone.low
            assert found.high >= alone.high


def test_equal_rows_are_rarely_said_to_differ():
    assert share_of_pages_with_a_claim(17, 3, 300) <= 0.06


@pytest.mark.slow
@pytest.mark.parametrize("shared", [0.0, 3.0], ids=["own luck", "luck of the seed"])
@pytest.mark.parametrize("runs", [2, 3, 8])
@pytest.mark.parametrize("rows", [2, 17])
def test_at_most_6_percent_of_pages_of_equal_rows_claim_a_difference(monkeypatch, rows, runs, shared):
    monkeypatch.setattr(seed_statistics, "_FEW", 8)  # the bootstrap would only widen intervals, and takes minutes
    assert share_of_pages_with_a_claim(rows, runs, 2000, shared=shared) <= 0.06


@pytest.mark.slow
@pytest.mark.parametrize("runs", [2, 3, 5])
def test_rows_that_scatter_five_times_as_much_claim_more_but_not_many(runs):
    assert share_of_pages_with_a_claim(17, runs, 2000, deviations=(1.0, 5.0)) <= 0.15
