"""The map of the field: which loss counts as like plain training's, what is said of it, and the page."""

import csv
import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from papers.field_map import HYBRIDS, NETWORKS, Reading, maps_of, reading_of
from papers.field_map_page import page, ratio_rows, weights, write
from papers.presets import composed
from papers.targets import SMALL, ReproductionTarget, command_of
from pipetrain.reporting.seed_statistics import Interval

COLUMNS = (
    "method", "partition.stages", "method.delay", "optimizer.lr", "seed", "status", "loss", "loss_steps", "dataset",
)  # fmt: skip
TARGET = ReproductionTarget("map/gpt", SMALL)


def round_with(*words):
    """The first round of the preset that has these words."""
    return next(each for each in TARGET.rounds if set(words) <= {f"{name}={each.given[name]}" for name in each.given})


def write_round(folder, this, *runs, rate=0.01):
    """Runs of a round: (method, depth, losses of seeds 0, 1, ...), and an infinite loss for one that diverged."""
    path = this.target.results(folder) / this.name / "runs.csv"
    path.parent.mkdir(parents=True)
    path.with_name("made.json").write_text(json.dumps({"command": command_of(this.words(Path("DIR")))}))
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        for method, depth, losses in runs:
            for seed, loss in enumerate(losses):
                ended = ("completed", loss, 300 * loss) if loss < 1e9 else ("diverged", "", "")
                stages, delay = (1, depth) if method == "delayed" else (depth, "")
                writer.writerow((method, stages, delay, rate, seed, *ended, "austen"))


def of_seeds(loss):
    return loss, 1.001 * loss, 1.002 * loss


FIRST, SECOND, *_ = TARGET.rounds


@pytest.fixture
def maps(tmp_path):
    naive = [(1, of_seeds(1.0)), (2, of_seeds(1.02)), (4, (1.0, 1.06, 1.4)), (8, of_seeds(1.2)), (16, of_seeds(1.5))]
    write_round(tmp_path, FIRST, *(("naive_async", *each) for each in naive))
    write_round(tmp_path, SECOND, ("pipeoptim", 4, of_seeds(1.01)), ("pipeoptim", 16, (1.4, 1.5, float("inf"))))
    muon = [(1, of_seeds(0.9)), (4, of_seeds(0.97)), (8, of_seeds(0.88))]
    write_round(tmp_path, round_with("optimizer=muon", "method=pipedream"), *(("pipedream", *each) for each in muon))
    write_round(tmp_path, round_with("method=stale_hybrid"), ("stale_hybrid", 8, of_seeds(1.1)))
    write_round(tmp_path, round_with("method=delayed"), ("delayed", 0, of_seeds(1.0)), ("delayed", 7, of_seeds(1.3)))
    return maps_of(tmp_path)


def rows_of(text):
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("| ")]


def ratios(maps, method, *columns, kind="pipeline"):
    """Depth -> these columns of the table of ratios, of a method; the value alone where there is one column."""
    rows = [row for row in ratio_rows(maps) if (row["method"], row["kind"]) == (method, kind)]
    found = {row["depth or delay"]: tuple(row[name] for name in columns) for row in rows}
    return {depth: values[0] if len(values) == 1 else values for depth, values in found.items()}


@pytest.mark.slow
def test_lines_are_named_for_method_and_what_the_round_changes(maps):
    (found,) = maps
    assert [line.name for line in found.lines] == ["naive_async", "pipedream optimizer=muon", "pipeoptim"]
    assert [line.name for line in found.hybrids] == ["stale_hybrid"]
    assert [line.depths for line in found.delayed] == [[0, 7]]
    assert (found.runs, found.missing) == (39, len(TARGET.rounds) - 5)


@pytest.mark.slow
def test_page_shows_where_remedy_is_needed_and_what_helps(maps):
    text = page(maps)
    reading = (
        "plain asynchrony matches plain training at D = 2, is undecided at D = 4, "
        "does not match plain training at D = 8, 16; mitigation is needed for D ≥ 8."
    )
    matching = "The deepest match shown is at D = 8, of `pipedream muon`."
    assert f"- `gpt` on austen: {reading} {matching}" in text


@pytest.mark.slow
def test_table_has_losses_ratios_and_readings(maps):
    assert ratios(maps, "naive_async", "loss", "95 %", "reading") == {
        1: ("1.001 ± 0.001", "1.00 to 1.00", ""),
        2: ("1.021 ± 0.001", "1.02 to 1.02", "supported"),
        4: ("1.153 ± 0.216", "0.73 to 1.78", "undecided"),
        8: ("1.201 ± 0.001", "1.20 to 1.20", "refuted"),
        16: ("1.502 ± 0.002", "1.50 to 1.50", "refuted"),
    }
    columns = ("loss", "95 %", "reading", "slowdown to the loss after 70%")
    assert ratios(maps, "pipeoptim", *columns) == {
        4: ("1.011 ± 0.001", "1.01 to 1.01", "supported", "1.01"),
        16: ("diverged", "diverged", "refuted", "infinite"),
    }


@pytest.mark.slow
def test_another_optimizer_is_read_against_its_own_loss_without_delay(maps):
    found = ratios(maps, "pipedream optimizer=muon", "over plain training, 95 %", "95 %", "reading", "below")
    assert found[4] == ("0.97 to 0.97", "1.08 to 1.08", "refuted", "")
    assert found[8] == ("0.88 to 0.88", "0.98 to 0.98", "supported", "yes")


@pytest.mark.slow
def test_reference_is_plain_training_at_its_best_rate(tmp_path):
    write_round(tmp_path, FIRST, ("naive_async", 1, of_seeds(1.0)), ("naive_async", 2, of_seeds(1.02)))
    write_round(tmp_path, round_with("method=delayed"), ("delayed", 0, of_seeds(1.0)), ("delayed", 7, of_seeds(1.3)))
    better, worse, *_ = (each for each in TARGET.rounds if "--tune" in each.settings)
    write_round(tmp_path, better, ("naive_async", 1, of_seeds(0.95)), rate=0.03)
    write_round(tmp_path, worse, ("naive_async", 1, (0.9, float("inf"), 0.9)), rate=0.09)
    (found,) = maps_of(tmp_path)
    assert (found.plain.rates[1], found.runs) == (0.03, 18)
    tried = [row for row in ratio_rows([found]) if row["kind"] == "plain training"]
    assert [(row["rate"], row["loss"], row["over plain training, 95 %"]) for row in tried] == [
        ("0.01", "1.001 ± 0.001", "1.05 to 1.05"),
        ("0.03", "0.951 ± 0.001", "1.00 to 1.00"),
        ("0.09", "diverged", "diverged"),
    ]
    assert ratios([found], "naive_async", "95 %", "reading")[2] == ("1.07 to 1.07", "refuted")
    assert ratios([found], "delayed", "loss", kind="equal delay") == {0: "0.951 ± 0.001", 7: "1.301 ± 0.001"}


@pytest.mark.parametrize(
    ("low", "high", "reading"),
    [
        (0.9, 1.05, Reading.SUPPORTED),
        (0.9, 1.0505, Reading.UNDECIDED),
        (1.05, 1.2, Reading.UNDECIDED),
        (1.0505, 1.2, Reading.REFUTED),
    ],
)
def test_loss_is_like_the_reference_up_to_five_percent_above(low, high, reading):
    assert reading_of(Interval(1.0, low, high)) is reading


@pytest.mark.slow
def test_hybrids_and_delays_are_apart(maps):
    assert "`stale_hybrid` for 50%" in page(maps)
    assert ratios(maps, "stale_hybrid", "95 %", "reading", kind="hybrid") == {8: ("1.10 to 1.10", "refuted")}
    assert ratios(maps, "delayed", "loss", "reading", kind="equal delay")[7] == ("1.301 ± 0.001", "")


@pytest.mark.slow
def test_page_says_what_was_trained_and_what_is_missing(maps):
    text = page(maps)
    assert f"39 runs of reported seeds, at least 3 seeds each; {len(TARGET.rounds) - 5} rounds have not" in text
    assert "If none of 3 runs diverged, up to 63% of such runs may still diverge" in text
    assert "Changed for the small scale: `model.layers=5 " in text
    assert "34 of its weights can be on a stage of their own" in text


def test_rounds_of_other_settings_count_as_not_run(tmp_path, monkeypatch):
    write_round(tmp_path, FIRST, ("naive_async", 1, of_seeds(1.0)))
    monkeypatch.setattr(ReproductionTarget, "settings", property(lambda _: ["train.batch_size=8"]))
    assert maps_of(tmp_path) == []
    write_round(tmp_path, SECOND, ("pipeoptim", 4, of_seeds(1.01)))
    (found,) = maps_of(tmp_path)
    assert ([line.name for line in found.lines], found.missing) == (["pipeoptim"], len(TARGET.rounds) - 1)


@pytest.mark.slow
def test_page_without_one_stage_claims_nothing(tmp_path):
    write_round(tmp_path, SECOND, ("pipeoptim", 4, of_seeds(1.01)))
    text = page(maps_of(tmp_path))
    assert "- `gpt` on austen: plain training has not been measured yet." in text
    assert "match shown" not in text


@pytest.mark.slow
def test_page_has_memory_and_throughput_from_closed_forms():
    lines = {row[0]: row[1:] for row in rows_of(page([]))}
    assert lines["pipedream"] == ["4.50", "8.50", "16.50", "8", "16", "32"]
    assert lines["pipedream_2bw"] == ["2.00", "2.00", "2.00", "1", "1", "1"]
    assert "busy for 53%, 35% and 21% of the time" in page([])


@pytest.mark.slow
def test_cells_of_the_heat_map_have_ratio_reading_and_interval(maps, tmp_path):
    (tmp_path / "images").mkdir()
    written = [path.name for path in write(tmp_path, tmp_path)]
    assert written == ["map_losses.svg", "map_slowdowns.svg", "map_delays.svg", "verdicts.csv", "map.md"]
    cells = {}
    for group in ElementTree.fromstring((tmp_path / "images" / "map_losses.svg").read_text()):
        if (title := group.find("{*}title")) is not None:
            box, words = group.find("{*}rect"), group.find("{*}text")
            cells[title.text.partition(":")[0]] = words.text, box.get("stroke") is not None, title.text
    assert cells["naive_async, D = 2"][:2] == ("1.02", True)
    assert cells["naive_async, D = 4"][:2] == ("1.14?", False)
    assert cells["pipeoptim, D = 16"][:2] == ("∞", False)
    assert "1.20 to 1.20, refuted; loss 1.201 ± 0.001" in cells["naive_async, D = 8"][2]
    with (tmp_path / "map" / "verdicts.csv").open(newline="") as file:
        assert [list(row.values()) for row in csv.DictReader(file)] == [
            [str(value) for value in row.values()] for row in ratio_rows(maps)
        ]


def test_page_without_results_says_so(tmp_path):
    assert maps_of(tmp_path / "none") == []
    assert "Nothing has been measured yet." in page([])


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.slow
def test_every_stage_of_the_deepest_pipeline_holds_weights(network):
    assert weights(ReproductionTarget(f"map/{network}", SMALL)) >= 32


@pytest.mark.parametrize("method", HYBRIDS)
@pytest.mark.slow
def test_hybrids_are_synchronous_for_the_share_that_the_page_says(method):
    (this,) = (each for each in TARGET.rounds[:12] if each.given["method"] == method)
    words = [f"{name}={value}" for name, value in this.given.items() if name != "partition.stages"]
    settings = composed(["experiment=map/gpt", *words])
    epochs = settings.phases[0].epochs
    synchronous = epochs if settings.phases[0].method.path.endswith("GPipe") else settings.train.epochs - epochs
    assert synchronous / settings.train.epochs == HYBRIDS[method]
