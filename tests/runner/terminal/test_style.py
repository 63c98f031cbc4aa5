"""Figures as files."""

import warnings

import pytest

from pipetrain.runner.terminal.style import figure


@pytest.mark.parametrize("name", ["a.png", "a.svg"])
def test_figure_replaces_a_link_and_leaves_what_it_leads_to(tmp_path, name):
    precious = tmp_path / "precious"
    precious.write_text("not to be overwritten")
    (tmp_path / name).symlink_to(precious)
    with figure(tmp_path / name, (2.0,)) as (panel,):
        panel.plot([0, 1])
    assert precious.read_text() == "not to be overwritten"
    assert (tmp_path / name).read_bytes()[:4] == {"a.png": b"\x89PNG", "a.svg": b"<svg"}[name]
    assert {path.name for path in tmp_path.iterdir()} == {"precious", name}


def test_letter_that_the_font_lacks_is_drawn_without_a_word(tmp_path):
    with warnings.catch_warnings(record=True) as said, figure(tmp_path / "a.png", (2.0,)) as (panel,):
        panel.set_title("\x1b 好")
    assert said == []
