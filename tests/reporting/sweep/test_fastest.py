"""The sentence that names the fastest row, and the order of rows, by hand."""

import math
import re
from pathlib import Path

import pytest

from pipetrain.reporting.sweep.compared_run import ComparedRun
from pipetrain.reporting.sweep.fastest import duration, fastest_first, sentence_on
from pipetrain.reporting.sweep.groups import SweepGroup
from pipetrain.reporting.sweep.slowdown import SECONDS, STEPS, RowSlowdown, Slowdown

INF = math.inf


def sentence(excluded=(), at_first=None, *, timed=True, **rows):
    """Of rows with the efforts of their seeds, from 0 on, or by seed."""
    efforts = [dict(enumerate(row)) if isinstance(row, tuple) else row for row in rows.values()]
    groups = [SweepGroup(name, [ComparedRun(Path(name), "completed")]) for name in rows]
    found = [
        RowSlowdown({SECONDS if timed else STEPS: values, STEPS: values}, {}, (at_first or {}).get(name, ()))
        for name, values in zip(rows, efforts, strict=True)
    ]
    order = fastest_first(efforts, excluded)
    text = sentence_on(Slowdown("gpipe", "train_loss", 0.5, None, 5.0, found), groups, excluded)
    return [list(rows)[number] for number in order], text


@pytest.mark.parametrize(
    ("rows", "order", "beginning", "verdict"),
    [
        # no seed contradicts it
        ({"a": (65, 66, 67), "b": (51, 52, 53)}, "ba", "b is the fastest: 52 s to", "holds over 3 seeds"),
        # one seed contradicts it
        ({"a": (70, 80, 75), "b": (71, 76, 74)}, "ba", "b is the fastest", "undecided after 3 seeds, about 15 more"),
        # the fastest missed the target once
        ({"a": (65, 66, 67), "b": (20, 21, INF)}, "ab", "a is the fastest", "undecided after 3 seeds"),
        # another one never reached it
        ({"a": (65, 66, 67), "b": (INF, INF, INF)}, "ab", "a is the fastest", "holds over 3 seeds"),
        # results are equal
        ({"a": (65, 66), "b": (51, 52), "c": (51, 52)}, "bca", "b and c are the fastest", "2 seeds"),
        # two lead by the seed that all have, and these by all that both have
        ({"a": (51, 52, 51), "b": (50, 65, 66), "c": (80,)}, "abc", "a is the fastest", "undecided after 3 seeds"),
        # a row with one seed does not hide the fastest
        ({"d": (83,), "a": (61, 62, 62), "b": (62, 71, 70), "c": (63, 50, 49)}, "cabd", "c is", "undecided after 3"),
        # one seed that no row has reached leaves the others to decide
        ({"a": (INF, 65, 66), "b": (INF, 51, 52), "c": (INF,)}, "bac", "b is the fastest", "undecided after 3"),
    ],
)
def test_order_and_verdict(rows, order, beginning, verdict):
    found, text = sentence(**rows)
    assert "".join(found) == order
    assert text.startswith(beginning)
    assert verdict in text


def test_verdict_counts_every_row_that_could_be_as_fast():
    _, text = sentence(a=(50, 51, 52), b=(55, 56, 57), c=(40, 60, 90))
    assert "; c takes 1.18" in text
    assert "undecided after 3 seeds" in text


def test_row_without_common_seed_is_left_out():
    order, text = sentence(a={7: 50.0}, b={0: 65.0, 1: 66.0}, c={0: 51.0, 1: 52.0})
    assert order == ["c", "b", "a"]
    assert text.startswith("c is the fastest: 51.5 s to training loss 0.5; b takes 1.27")
    assert text.endswith("share no seed with it: a.")
    _, text = sentence(a={7: 50.0}, b={0: 65.0})
    assert "takes" not in text
    assert text.endswith("share no seed with it: b.")


def test_excluded_row_comes_last_and_cannot_win():
    order, text = sentence(excluded=[0], a=(51, 52), b=(65, 66), c=(90, 91))
    assert order == ["b", "c", "a"]
    assert text.startswith("b is the fastest")
    assert "; c takes 1.38" in text


def test_target_that_no_row_has_reached():
    assert sentence(a=(INF, INF), b=(INF,))[1] == "No row has reached training loss 0.5."


def test_single_row_is_not_compared():
    assert sentence(a=(51, 52))[1] == "a is the fastest: 51.5 s to training loss 0.5."


def test_steps_that_are_upper_bounds_are_undecided():
    rows = {"a": (51, 52), "b": (65, 66), "c": (80, 81)}
    _, text = sentence(at_first={"c": [0]}, **rows)
    assert "; b takes 1.27" in text
    assert "undecided, as c had reached it at the first value" in text
    assert "holds" in sentence(at_first={"a": [0]}, **rows)[1]  # the fastest is at most faster


def test_narrow_margin_has_more_digits():
    _, text = sentence(a=(65.0, 66.0, 67.0), b=(65.1, 66.1, 67.1))
    middle, low, high = map(float, re.search(r"b takes (\S+) \((\S+) to (\S+)\) times", text).groups())
    assert 1 < low <= middle <= high < 1.004


def test_rows_are_compared_by_steps_if_a_time_is_unknown():
    assert "51 steps to training loss" in sentence(timed=False, a=(65,), b=(51,))[1]


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.1234, "0.123 s"), (99.9, "99.9 s"), (600, "10.0 min"), (7200, "2.0 h")]
)
def test_duration_is_in_a_suitable_unit(seconds, text):
    assert duration(seconds) == text
