"""`python -m papers staleness`: what is measured beside its closed forms."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from papers import staleness
from papers.cli import PROGRAM
from papers.closed_forms import CLOSED
from pipetrain import cli


@pytest.mark.slow
@settings(max_examples=3)
@given(st.integers(1, 6), st.integers(1, 5))
def test_every_staleness_measured_equals_its_closed_form(stages, microbatches):
    assert staleness.report(stages, microbatches, None)


@pytest.mark.slow
def test_wrong_closed_form_fails_the_report(monkeypatch, capsys):
    monkeypatch.setitem(CLOSED, "pipedream", CLOSED["naive_async"])
    assert not staleness.report(3, 1, None)
    assert "2 rows differ" in capsys.readouterr().out  # the last stage is never stale


def test_command_prints_the_staleness_tables_of_the_papers(tmp_path, capsys):
    assert cli.carry_out(["staleness", "--stages", "4", "-o", str(tmp_path / "rows.json")], PROGRAM) == 0
    shown = capsys.readouterr().out
    assert "  pipedream      [1, 4] | [1, 4]\n" in shown
    assert "tau_fwd 7 5 3 1 | 7 5 3 1   tau_bkd 0 0 0 0 | 0 0 0 0" in shown
    rows = json.loads((tmp_path / "rows.json").read_text())
    assert {row["method"] for row in rows} == CLOSED.keys()
