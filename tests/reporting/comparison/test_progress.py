"""What a comparison says before and while it runs."""

import re

import pytest
from support.made_up_runs import contender

from pipetrain.reporting.comparison import progress
from pipetrain.reporting.comparison.progress import Progress, duration, outlook
from pipetrain.reporting.comparison.tuning import Grid


def said(first, count=4, **asked):
    return " ".join(outlook(first, count, **{"seeds": 5, "tuning_seeds": 2, "jobs": 2, "minutes": None, **asked}))


@pytest.mark.parametrize(
    ("rates", "request_", "runs", "seconds"),
    [
        (3, {}, 4 * (3 * 2 + 5), 220),
        (3, {"tuning_seeds": 1, "seeds": 2}, 4 * (3 + 2), 100),
        (1, {"seeds": 2}, 4 * 2, 40),
    ],
)
def test_outlook_has_the_runs_and_their_time(rates, request_, runs, seconds):
    grid = Grid((tuple(f"optimizer.lr={n}" for n in range(rates)),), extends=rates > 1)
    text = said(contender("gpipe", estimated_s=10.0, grid=grid), **request_)
    assert re.search(rf"(at least )?{runs} runs of 100 steps", text)
    assert ("at least" in text) == ("to tune it" in text) == (rates > 1)
    assert f"about {duration(seconds)} " in text


def test_outlook_says_if_the_minutes_will_not_do():
    first = contender("gpipe", estimated_s=10.0)
    assert "--minutes 3 ends it" in said(first, minutes=3.0)
    assert "--minutes" not in said(first, minutes=4.0)


def test_times_are_in_a_suitable_unit():
    shown = [duration(each) for each in (-1, 0.4, 119, 150, 1500, 2 * 3600, 10 * 3600)]
    assert shown == ["0 s", "0 s", "119 s", "2.5 min", "25 min", "2.0 h", "10 h"]


def test_progress_is_a_line_now_and_then_without_a_terminal(capsys, monkeypatch):
    shown = Progress()
    shown.show(3, 44, "tuning {gpipe}", 150.0)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(progress, "_LINE_SECONDS", 0.0)
    shown.show(4, 44, "tuning {gpipe}", 150.0)
    shown.close()
    assert capsys.readouterr() == ("", "4 of 44 runs have ended; tuning {gpipe}; about 2.5 min left\n")


def test_progress_is_a_bar_on_a_terminal(capsys, monkeypatch):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    shown = Progress()
    shown.show(3, 44, "tuning {gpipe}", 150.0)
    bar = capsys.readouterr().err
    assert "3 of 44 runs have ended; tuning {gpipe}" in bar
    assert "about 2.5 min left" in bar
    shown.close()
