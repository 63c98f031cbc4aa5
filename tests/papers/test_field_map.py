"""The map of the field: which loss counts as like plain training's, what is said of it, and the page."""

import csv
import json
from pathlib import Path

import pytest

from papers.field_map import HYBRIDS, NETWORKS, Reading, maps_of, reading_of
from papers.field_map_page import page, weights
from papers.lines import draw
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


def write(folder, this, *runs, rate=0.01):
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
    write(tmp_path, FIRST, *(("naive_async", *each) for each in naive))
    write(tmp_path, SECOND, ("pipeoptim", 4, of_seeds(1.01)), ("pipeoptim", 16, (1.4, 1.5, float("inf"))))
    muon = [(1, of_seeds(0.9)), (4, of_seeds(0.97)), (8, of_seeds(0.88))]
    write(tmp_path, round_with("optimizer=muon", "method=pipedream"), *(("pipedream", *each) for each in muon))
    write(tmp_path, round_with("method=stale_hybrid"), ("stale_hybrid", 8, of_seeds(1.1)))
    write(tmp_path, round_with("method=delayed"), ("delayed", 0, of_seeds(1.0)), ("delayed", 7, of_seeds(1.3)))
    return maps_of(tmp_path)


def rows_of(text):
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("| ")]


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
    assert f"- `gpt` on austen: {reading}" in text
    matching = "Methods shown to match their optimizer without delay, at D = 4: pipeoptim; at D = 8: pipedream"
    assert f"- P{reading[1:]}\n- {matching} optimizer=muon." in text
    rows = rows_of(text)
    head = next(row for row in rows if row[0] == "`gpt` on austen")
    assert head[1:4] == ["34", "**1.02 to 1.02, supported**", "0.73 to 1.78, undecided"]
    losses = ["1.001 ± 0.001", "**1.021 ± 0.001**", "1.153 ± 0.216", "1.201 ± 0.001", "1.502 ± 0.002"]
    assert ["naive_async", *losses] in rows
    assert ["pipeoptim", "", "", "**1.011 ± 0.001**", "", "diverged"] in rows
    assert ["pipeoptim", "", "**1.01 to 1.01, supported**", "", "diverged, refuted"] in rows
    assert ["pipeoptim", "", "1.01", "", "infinite"] in rows


@pytest.mark.slow
def test_another_optimizer_is_read_against_its_own_loss_without_delay(maps):
    text = page(maps)
    assert ["pipedream optimizer=muon", "", "0.97 to 0.97", "0.88 to 0.88", ""] in rows_of(text)
    own = ["pipedream optimizer=muon", "", "1.08 to 1.08, refuted", "**0.98 to 0.98, supported, below**", ""]
    assert own in rows_of(text)
    assert "- Significantly below their reference, which may not have the best rate, at D = 8: pipedream opt" in text


@pytest.mark.slow
def test_reference_is_plain_training_at_its_best_rate(tmp_path):
    write(tmp_path, FIRST, ("naive_async", 1, of_seeds(1.0)), ("naive_async", 2, of_seeds(1.02)))
    write(tmp_path, round_with("method=delayed"), ("delayed", 0, of_seeds(1.0)), ("delayed", 7, of_seeds(1.3)))
    better, worse, *_ = (each for each in TARGET.rounds if "--tune" in each.settings)
    write(tmp_path, better, ("naive_async", 1, of_seeds(0.95)), rate=0.03)
    write(tmp_path, worse, ("naive_async", 1, (0.9, float("inf"), 0.9)), rate=0.09)
    (found,) = maps_of(tmp_path)
    assert (found.plain.rates[1], found.runs) == (0.03, 18)
    rows = rows_of(page([found]))
    assert [row for row in rows if row[0] in ("0.01", "0.03", "0.09")] == [
        ["0.01", "1.001 ± 0.001", "1.05 to 1.05"],
        ["0.03", "0.951 ± 0.001", "reference"],
        ["0.09", "diverged", "diverged"],
    ]
    assert ["naive_async", "1.07 to 1.07, refuted"] in rows
    assert ["delayed", "0.951 ± 0.001", "1.301 ± 0.001"] in rows


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
def test_hybrids_and_delays_have_tables_of_their_own(maps):
    text = page(maps)
    assert "`stale_hybrid` for 50%" in text
    assert ["stale_hybrid", "1.10 to 1.10, refuted"] in rows_of(text)
    assert ["delayed", "1.001 ± 0.001", "1.301 ± 0.001"] in rows_of(text)
    assert "stale_hybrid" not in text[text.index("Final loss:") : text.index("**Hybrids**")]


@pytest.mark.slow
def test_page_says_what_was_trained_and_what_is_missing(maps):
    text = page(maps)
    assert (
        f"**Measured:** 39 runs of reported seeds, at least 3 seeds each; {len(TARGET.rounds) - 5} rounds have not"
        in text
    )
    assert "If none of 3 runs diverged, up to 63% of such runs may still diverge" in text
    assert "Changed for the small scale: `model.layers=5 " in text
    assert "Trained on `austen`: Novels of Jane Austen" in text


def test_rounds_of_other_settings_count_as_not_run(tmp_path, monkeypatch):
    write(tmp_path, FIRST, ("naive_async", 1, of_seeds(1.0)))
    monkeypatch.setattr(ReproductionTarget, "settings", property(lambda _: ["train.batch_size=8"]))
    assert maps_of(tmp_path) == []
    write(tmp_path, SECOND, ("pipeoptim", 4, of_seeds(1.01)))
    (found,) = maps_of(tmp_path)
    assert ([line.name for line in found.lines], found.missing) == (["pipeoptim"], len(TARGET.rounds) - 1)


@pytest.mark.slow
def test_page_without_one_stage_claims_nothing(tmp_path):
    write(tmp_path, SECOND, ("pipeoptim", 4, of_seeds(1.01)))
    text = page(maps_of(tmp_path))
    assert "- `gpt` on austen: plain training has not been measured yet." in text
    assert "shown to" not in text


@pytest.mark.slow
def test_page_has_memory_and_throughput_from_closed_forms():
    lines = {row[0]: row[1:] for row in rows_of(page([]))}
    assert lines["pipedream"] == ["4.50", "8.50", "16.50", "8", "16", "32"]
    assert lines["pipedream_2bw"] == ["2.00", "2.00", "2.00", "1", "1", "1"]
    assert "busy for 53%, 35% and 21% of the time" in page([])


@pytest.mark.slow
def test_figure_is_drawn_and_page_without_results_says_so(maps, tmp_path):
    draw(tmp_path / "map.png", maps[0].lines, maps[0].plain)
    assert (tmp_path / "map.png").read_bytes().startswith(b"\x89PNG")
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
