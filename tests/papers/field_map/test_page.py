"""The map of the field: which loss counts, where mitigation is needed, and the page."""

import csv

import pytest

from papers.field_map.figure import draw
from papers.field_map.grid import planned
from papers.field_map.losses import maps_of
from papers.field_map.page import map_page

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


def test_loss_is_of_best_rate_over_seeds_with_diverged_worst(maps):
    (found,) = maps
    assert (found.network, found.scale, found.measured.runs) == ("gpt", "small", 7)
    plain = found.losses["naive_async", 1]
    assert (plain.rate, plain.rates, plain.seeds) == (0.1, 2, 2)
    assert (plain.median, plain.deviation) == pytest.approx((1.1, 0.1414), abs=1e-4)
    assert found.losses["naive_async", 8].rate == 0.01
    assert ("pipemare", 64) not in found.losses


def test_rates_are_compared_over_the_seeds_that_all_of_them_have(tmp_path):
    rows = [("pipemare", 8, 0.1, 0, 1.0), ("pipemare", 8, 0.1, 1, 3.0), ("pipemare", 8, 0.01, 0, 1.5)]
    path = tmp_path / "map" / "conv_pipemare" / "small" / "runs.csv"
    path.parent.mkdir(parents=True)
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([COLUMNS, *((*row[:4], "completed", row[4], "cifar10") for row in rows)])
    (found,) = maps_of(tmp_path)
    assert (found.losses["pipemare", 8].rate, found.losses["pipemare", 8].median) == (0.1, 2.0)
    assert "**Plain training has not been measured yet" in map_page([found])


def test_completed_run_with_overflowed_evaluation_is_diverged(tmp_path):
    path = tmp_path / "map" / "conv" / "small" / "runs.csv"
    path.parent.mkdir(parents=True)
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([COLUMNS, ("stale", 8, 0.1, 0, "completed", "", "cifar10")])
    (found,) = maps_of(tmp_path)
    assert found.losses["stale", 8].median == float("inf")


def test_grid_is_what_the_presets_sweep_at_a_scale():
    small, full = (planned(["map/gpt", "map/gpt_2bw"], scale) for scale in ("small", "full"))
    places, rates, seeds = 9 * 8 + 3, 3, 3
    assert full.runs == places * rates * seeds
    assert small.runs == places * (rates + seeds - 1)
    assert (small.rates, full.rates) == ({0.004, 0.001, 0.016}, {0.001, 0.0002, 0.005})
    assert small.methods >= {"naive_async", "pipedream_2bw"}
    assert small.depths == {1, 2, 4, 8, 16, 32, 64, 107}


def write(folder, *losses):
    """Runs of `gpt` at one rate: (method, depth, losses of seeds 0, 1, …)."""
    path = folder / "map" / "gpt" / "small" / "runs.csv"
    path.parent.mkdir(parents=True)
    rows = [
        (method, depth, 0.004, seed, "completed", loss, "austen")
        for method, depth, found in losses
        for seed, loss in enumerate(found)
    ]
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([COLUMNS, *rows])
    return maps_of(folder)


def of_seeds(loss):
    return loss, 1.001 * loss, 1.002 * loss


def test_page_shows_where_remedy_is_needed_and_what_helps(tmp_path):
    scattered = 1.0, 1.06, 1.4
    found = write(
        tmp_path,
        ("naive_async", 1, of_seeds(1.0)),
        ("naive_async", 2, of_seeds(1.02)),
        ("naive_async", 4, scattered),
        ("naive_async", 8, of_seeds(1.2)),
        ("naive_async", 16, of_seeds(1.5)),
        ("pipeoptim", 4, of_seeds(1.01)),
        ("pipeoptim", 16, of_seeds(1.4)),
    )
    page = map_page(found)
    reading = (
        "plain asynchrony matches plain training at D = 2, is undecided at D = 4, "
        "does not match plain training at D = 8, 16; mitigation is needed for D ≥ 8."
    )
    assert f"- `gpt` on austen: {reading}" in page
    assert f"**P{reading[1:]}**" in page
    assert "shown to match plain training: at D = 2: naive_async; at D = 4: pipeoptim. No method is" in page
    assert "to match plain training at D = 8, 16. All methods are shown not to match it at D = 8, 16." in page
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in page.splitlines() if line.startswith("| ")]
    head = next(row for row in rows if row[0] == "`gpt` on austen")
    assert head[1:4] == ["16", "**1.02 to 1.02, supported**", "0.73 to 1.78, undecided"]
    assert ["naive_async", "1.001 ± 0.001", "**1.021 ± 0.001**", "1.060 ± 0.22", "1.201 ± 0.0012"] in [
        row[:5] for row in rows
    ]
    assert ["pipeoptim", "", "**1.01 to 1.01, supported**", "", "1.40 to 1.40, refuted"] in rows


def test_one_seed_decides_nothing(maps):
    reading = "plain asynchrony is undecided at D = 8, 64; no depth is known to need mitigation."
    assert f"- `gpt` on austen: {reading}" in map_page(maps)


def test_page_states_effect_of_choosing_rate_by_one_seed(tmp_path):
    page = map_page(write(tmp_path, ("naive_async", 1, (0.9, 1.0, 1.0)), ("naive_async", 2, (0.9, 1.0, 1.0))))
    assert "10.0% below those of the other seeds" in page


def test_page_explains_weightless_stages_and_unpipelined_methods():
    page = map_page([])
    assert "the stages without weights only add delay" in page
    assert "`stale_hybrid` and `pipemare_w` train one of their two epochs without a pipeline." in page
    assert "at D = 107 such a run would take 54 times as long" in page


def test_page_lists_missing_grid_points_data_and_changes(maps):
    page = map_page(maps)
    assert (
        "**Measured:** 7 of 495 runs so far; not measured yet: D = 2, 4, 16, 32, 107; learning rate 0.001, 0.004, "
        "0.016; seed 2; hogwild, i_timeprest, lwp, pipedream, pipedream_2bw, pipemare_w, pipeoptim, stale, "
        "stale_hybrid, timeprest, v_timeprest; each loss: the best of 1 to 2 learning rates, 1 to 2 seeds." in page
    )
    assert "Changed for the small scale: `model.layers=2 " in page
    assert "Trained on `austen`: Novels of Jane Austen" in page


def test_page_omits_remedies_without_plain_asynchronous_runs(tmp_path):
    path = tmp_path / "map" / "gpt" / "small" / "runs.csv"
    path.parent.mkdir(parents=True)
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([COLUMNS, ("naive_async", 1, 0.004, 0, "completed", 1.0, "austen")])
    assert "measured with one stage only" in map_page(maps_of(tmp_path))


def test_page_has_memory_and_throughput_from_closed_forms():
    lines = {line.split("|")[1].strip(): line.split("|")[2:-1] for line in map_page([]).splitlines() if "|" in line}
    assert [cell.strip() for cell in lines["pipedream"]] == ["4.50", "16.50", "54.00", "8", "32", "107"]
    assert [cell.strip() for cell in lines["pipedream_2bw"]] == ["2.00", "2.00", "2.00", "1", "1", "1"]
    assert "busy for 53%, 21% and 7% of the time" in map_page([])


def test_figure_is_drawn_and_page_without_results_says_so(maps, tmp_path):
    draw(tmp_path / "map.png", maps[0])
    assert (tmp_path / "map.png").read_bytes().startswith(b"\x89PNG")
    assert maps_of(tmp_path / "none") == []
    assert "Nothing has been measured yet." in map_page([])
