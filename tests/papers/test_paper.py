"""The numbers of results/published: complete rows, each with its source, and texts that their tables bear out."""

from fractions import Fraction
from pathlib import Path

import pytest

from papers.pages import PAPERS
from papers.paper import Agreement, Comparison, PublishedTable, agrees, read_tables, shown
from pipetrain.engine.errors import ConfigError


@pytest.mark.parametrize(
    ("printed", "ours", "relation", "expected"),
    [
        ("1.95", Fraction("1.9549"), "=", True),
        ("1.95", Fraction("1.956"), "=", False),
        ("3.15", Fraction("3.155"), "=", True),
        ("5e-4", 0.0005, "=", True),
        (">1.66", 1.6637, ">=", True),
        ("0.5", Fraction("0.53"), "<=", False),
        ("adam", "adamw", "=", False),
    ],
)
def test_numbers_agree_at_the_digits_that_are_printed(printed, ours, relation, expected):
    assert agrees(printed, ours, relation) is expected


@pytest.mark.parametrize(
    ("ours", "more", "expected"),
    [
        (3.0, {}, Agreement.OPEN),
        (3.0, {"note": "why"}, Agreement.EXPLAINED),
        (3.0, {"note": "perhaps", "explained": False}, Agreement.OPEN),
        (None, {"note": "why"}, Agreement.UNDETERMINED),
    ],
)
def test_difference_without_a_reason_is_open(ours, more, expected):
    assert Comparison("", "", "2", ours, **more).agreement is expected


def test_number_is_shown_with_one_digit_more_than_is_printed():
    shown_as = [shown(*each) for each in ((Fraction(2), "2.0"), (5 / 3, "1.6"), ("adam", "x"), (None, "2.0"))]
    assert shown_as == ["2", "1.67", "adam", ""]


RESULTS = Path(__file__).parents[2] / "results"
DIFFERENT = {
    "pipeoptim": {"group_2_optimizer", "group_3_optimizer", "max_batch_throughput_gnmt_maximum", "overall_2bw_most"},
    "pipemare": {"pipedream_transformer_memory"},
    "zhang": {"drop_lenet5_most", "accelerators_most", "hybrid_speedup_most"},
    "pipedream": {
        "configurations_data_parallel",
        "vgg16_tta_cluster_b",
        "gnmt16_tta_one_server",
        "gnmt8_tta_cluster_a",
        "gnmt16_tta_cluster_a",
        "gnmt8_gpus_cluster_a",
    },
}
"""The statements that the papers' own tables do not bear out."""


@pytest.mark.parametrize("paper", PAPERS)
def test_every_row_is_complete_and_names_its_source(paper):
    for table in read_tables(RESULTS, paper).values():
        assert table.rows
        for row in table.rows:
            assert None not in row
            assert None not in row.values()
            assert row["source"]


@pytest.mark.parametrize("paper", PAPERS.values(), ids=PAPERS)
def test_statements_contradicting_tables_are_known_and_explained(paper):
    tables = read_tables(RESULTS, paper.name)
    names = {row["statement"]: row["name"] for row in tables["stated"].rows}
    wrong = {names[each.what]: each for each in paper.stated(tables) if each.agreement is not Agreement.EXACT}
    assert wrong.keys() == DIFFERENT.get(paper.name, set())
    assert all(each.agreement is Agreement.EXPLAINED for each in wrong.values())
    assert set(paper.recomputed(tables)) <= set(names.values())
    assert set(paper.notes) == DIFFERENT.get(paper.name, set())


def test_row_that_is_not_the_only_one_is_refused():
    table = PublishedTable("table", ({"a": "1", "b": "2"}, {"a": "1", "b": "3"}))
    with pytest.raises(KeyError, match="2 rows"):
        table.row(a="1")
    assert table.number("b", a="1", b="3") == 3


def test_folder_without_published_numbers_is_named(tmp_path):
    with pytest.raises(ConfigError, match="a checkout of pipetrain has them"):
        read_tables(tmp_path, "zhang")
