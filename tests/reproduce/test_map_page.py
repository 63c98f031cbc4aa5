"""The map of the field: which loss counts, where a cure is needed, and the page."""

import csv

import pytest

from pipetrain.reproduce.field_map import maps_of
from pipetrain.reproduce.map_page import draw, map_page

COLUMNS = ("method", "partition.stages", "optimizer.lr", "seed", "status", "loss", "dataset")
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
        csv.writer(file).writerows([COLUMNS, *((*row, "austen") for row in ROWS)])
    return maps_of(tmp_path)


def test_loss_is_that_of_the_best_rate_over_seeds_and_diverged_runs_are_worst(maps):
    (found,) = maps
    assert (found.network, found.scale, found.runs) == ("gpt", "small", 7)
    plain = found.losses["naive_async", 1]
    assert (plain.rate, plain.rates, plain.seeds) == (0.1, 2, 2)
    assert (plain.mean, plain.deviation) == pytest.approx((1.1, 0.1414), abs=1e-4)
    assert found.losses["naive_async", 8].rate == 0.01
    assert ("pipemare", 64) not in found.losses


def test_rates_are_compared_over_the_seeds_that_all_of_them_have(tmp_path):
    rows = [("pipemare", 8, 0.1, 0, 1.0), ("pipemare", 8, 0.1, 1, 3.0), ("pipemare", 8, 0.01, 0, 1.5)]
    path = tmp_path / "map" / "conv_pipemare" / "small" / "runs.csv"
    path.parent.mkdir(parents=True)
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([COLUMNS, *((*row[:4], "completed", row[4], "cifar10") for row in rows)])
    (found,) = maps_of(tmp_path)
    assert (found.losses["pipemare", 8].rate, found.losses["pipemare", 8].mean) == (0.1, 2.0)
    assert "Plain training was not measured yet." in map_page([found])


def test_page_says_from_which_depth_on_a_cure_is_needed_and_how_far_each_method_holds(maps):
    (found,) = maps
    assert (found.falls_behind("naive_async"), found.holds_to("naive_async")) == (8, 1)
    assert (found.falls_behind("pipemare"), found.holds_to("pipemare")) == (None, 8)
    page = map_page(maps)
    assert "## gpt on austen, small scale" in page
    assert "7 runs so far: each loss from 1 to 2 learning rates, with 1 to 2 seeds of the best one." in page
    assert "Plain asynchrony falls behind from D = 8 on (2.000 against 1.100 ± 0.14 in plain training)." in page
    assert "Like plain training at D = 8: pipemare; at D = 64: none of those measured." in page
    lines = [line for line in page.splitlines() if line.startswith("| naive_async | ")]
    cells = [[cell.strip() for cell in line.split("|")[2:-1]] for line in lines[:2]]
    assert cells == [["**1.100 ± 0.14**", "2.000", "diverged", "D = 1"], ["0.1", "0.01", ""]]


def test_figure_is_drawn_and_page_without_results_says_so(maps, tmp_path):
    draw(tmp_path / "map.png", maps)
    assert (tmp_path / "map.png").read_bytes().startswith(b"\x89PNG")
    assert maps_of(tmp_path / "none") == []
    assert "Nothing was measured yet." in map_page([])
