"""The numbers of results/published: complete rows, each with its source, and texts that their tables bear out."""

from pathlib import Path

import pytest

from pipetrain.errors import ConfigError
from pipetrain.reproduce.comparison import Agreement
from pipetrain.reproduce.pages import PAPERS
from pipetrain.reproduce.published import PublishedTable, tables_of

RESULTS = Path(__file__).parents[2] / "results"
DIFFERENT = {
    "pipeoptim": {
        "group_2_optimizer",
        "group_3_optimizer",
        "max_batch_throughput_gnmt_maximum",
        "overall_2bw_most",
    },
    "pipemare": {"pipedream_transformer_memory"},
    "zhang": {"drop_lenet5_most", "accelerators_most", "hybrid_speedup_most"},
    "timeprest": set(),
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
    for table in tables_of(RESULTS, paper).values():
        assert table.rows
        for row in table.rows:
            assert None not in row
            assert None not in row.values()
            assert row["source"]


@pytest.mark.parametrize("paper", PAPERS.values(), ids=PAPERS)
def test_statements_that_the_tables_do_not_bear_out_are_known_and_explained(paper):
    tables = tables_of(RESULTS, paper.name)
    names = {row["statement"]: row["name"] for row in tables["stated"].rows}
    wrong = {names[each.what]: each for each in paper.stated(tables) if each.agreement is not Agreement.EXACT}
    assert wrong.keys() == DIFFERENT[paper.name]
    assert all(each.agreement is Agreement.EXPLAINED for each in wrong.values())
    assert set(paper.recomputed(tables)) <= set(names.values())
    assert set(paper.notes) == DIFFERENT[paper.name]


def test_row_that_is_not_the_only_one_is_refused():
    table = PublishedTable("table", ({"a": "1", "b": "2"}, {"a": "1", "b": "3"}))
    with pytest.raises(KeyError, match="2 rows"):
        table.row(a="1")
    assert table.number("b", a="1", b="3") == 3


def test_folder_without_published_numbers_is_named(tmp_path):
    with pytest.raises(ConfigError, match="a checkout of pipetrain has them"):
        tables_of(tmp_path, "zhang")
