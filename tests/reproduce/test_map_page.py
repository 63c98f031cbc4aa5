"""The map of the field: which loss counts, where a cure is needed, and the page."""

import csv

import pytest

from pipetrain.reproduce.field_map import maps_of
from pipetrain.reproduce.map_page import draw, map_page

COLUMNS = ("method", "partition.stages", "optimizer.lr", "seed", "status", "loss")
ROWS = (
    ("naive_async", 1, 0.1, 0, "completed", 1.0),
    ("naive_async", 1, 0.1, 1, "completed", 1.2),
    ("naive_async", 1, 0.01, 0, "completed", 1.5),
    ("naive_async", 8, 0.1, 0, "diverged", ""),
    ("naive_async", 8, 0.01, 0, "completed", 2.0),
    ("naive_async", 64, 0.1, 0, "diverged", ""),
    ("pipemare", 8, 0.1, 0, "completed", 1.1),
    ("pipemare", 64, 0.1, 0, "unfinished", ""),
)


@pytest.fixture
def maps(tmp_path):
    path = tmp_path / "map" / "gpt" / "small" / "runs.csv"
    path.parent.mkdir(parents=True)
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([COLUMNS, *ROWS])
    return maps_of(tmp_path)


def test_loss_is_that_of_the_best_rate_over_seeds_and_diverged_runs_are_worst(maps):
    (found,) = maps
    assert (found.network, found.scale, found.runs) == ("gpt", "small", 7)
    plain = found.losses["naive_async", 1]
    assert (plain.rate, plain.seeds) == (0.1, 2)
    assert (plain.mean, plain.deviation) == pytest.approx((1.1, 0.1414), abs=1e-4)
    assert found.losses["naive_async", 8].rate == 0.01
    assert ("pipemare", 64) not in found.losses


def test_cure_is_needed_from_the_first_depth_at_which_plain_asynchrony_loses(maps):
    assert maps[0].needed_from() == 8
    page = map_page(maps)
    assert "Of the depths so far, D = 8 is the first that needs a cure; like plain training there: pipemare." in page
    (line,) = (line for line in page.splitlines() if line.startswith("| naive_async | **"))
    assert [cell.strip() for cell in line.split("|")[2:5]] == ["**1.100 ± 0.14**", "2.000", "diverged"]


def test_figure_is_drawn_and_page_without_results_says_so(maps, tmp_path):
    draw(tmp_path / "map.png", maps)
    assert (tmp_path / "map.png").read_bytes().startswith(b"\x89PNG")
    assert maps_of(tmp_path / "none") == []
    assert "Nothing was measured yet." in map_page([])
