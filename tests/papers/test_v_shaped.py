"""The page of `1f1b_v`: which runs are paired, and what their intervals decide."""

import csv
import json
from pathlib import Path

import pytest

from papers.targets import ReproductionTarget, command_of
from papers.v_shaped import comparisons, page, pairs_of, write

COLUMNS = ("method", "partition.stages", "seed", "status", "loss", "loss_steps", "early_loss_steps", "optimizer.lr")
SEEDS = (1, 2, 3)


def stored(folder, preset, losses, steps=None, method="pipedream"):
    """Runs of a preset's sweep: stages -> final loss of each seed, and stages -> steps to the earlier loss."""
    target = ReproductionTarget(f"slowdown/{preset}", "small")
    path = target.results(folder) / "runs.csv"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.with_name("made.json").write_text(json.dumps({"command": command_of(target.words(Path("DIR")))}))
    rows = [
        (method, stages, seed, "completed", loss, "", (steps or {}).get(stages, ""), 0.03)
        for stages, values in losses.items()
        for seed, loss in zip(SEEDS, values, strict=False)
    ]
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([COLUMNS, *rows])


@pytest.fixture
def results(tmp_path):
    flat = {1: (2.2, 2.21, 2.19), 8: (2.7, 2.8, 2.75), 16: (2.8, 2.9, 2.85), 32: (2.9, 3.0, 2.95)}
    v = {2: (2.2, 2.21, 2.19), 16: (2.6, 2.7, 2.651), 32: (2.9, 3.0, 2.951), 64: (2.8, 3.1, 2.96)}
    stored(tmp_path, "nadam", flat, {1: 100, 8: 600})
    stored(tmp_path, "v_nadam", v, {2: 110, 16: 440})
    return tmp_path


def row(text, *cells):
    """The cells of the first row that begins with these: that of the same number of processes."""
    beginning = f"| {' | '.join(cells)} |"
    found = next(line for line in text.splitlines() if line.startswith(beginning))
    return [cell.strip() for cell in found.split("|")[1:-1]]


def test_runs_on_the_same_processes_are_paired_by_seed(results):
    scale, (pair,) = pairs_of(results)
    assert (scale, pair.flat.name, pair.numbers) == ("small", "NAdam", [8, 16, 32])
    assert pair.change([8]).middle == pytest.approx(-0.0997, abs=1e-4)
    assert pair.change([8, 16]).middle == pytest.approx(0.0003, abs=1e-4)
    assert pair.at_equal_depth(16).middle == pytest.approx(-0.1997, abs=1e-4)


@pytest.mark.parametrize(("count", "said"), [("8", "less"), ("16", "more"), ("32", "undecided")])
def test_interval_decides_whether_the_loss_is_less(results, count, said):
    assert row(page(*pairs_of(results)), "NAdam", count)[5] == said


def test_slowdown_is_over_one_process_of_the_same_schedule(results):
    text = page(*pairs_of(results))
    assert row(text, "NAdam", "8")[6:] == ["6.00", "4.00", "less"]
    assert row(text, "NAdam", "16")[6:] == ["infinite", "infinite", "undecided"]


def test_comparisons_are_counted_by_what_they_decide(results):
    text = page(*pairs_of(results))
    assert "final loss of `1f1b_v` is less in 1, more in 1, undecided in 1 of 3 comparisons" in text
    assert "On one process, where nothing is stale, the loss of two stages minus that of one is NAdam +0.000" in text


def test_runs_that_are_missing_are_counted_and_not_judged(results):
    v = {2: (2.2, 2.21, 2.19), 16: (2.6,)}
    stored(results, "v_nadam", v)
    text = page(*pairs_of(results))
    assert "4 of 45 runs in a V are stored, not: AdamW on 8, 16, 32; " in text
    assert "; NAdam on 16, 32; SOAP on 8, 16, 32 processes." in text
    assert row(text, "NAdam", "8")[4:6] == ["-0.100", "undecided"]
    assert "| NAdam | 16 | 2.850 ± 0.050 | 2.600 |" in text  # the same stages
    assert "| NAdam | 32 |" not in text


def test_one_process_is_shared_by_the_methods_of_a_preset(results):
    flat = {1: (2.2, 2.21, 2.19), 8: (2.7, 2.8, 2.75)}
    stored(results, "adamw", flat, method="pipeoptim")
    stored(results, "v_adamw", {16: (2.6, 2.7, 2.65)}, method="pipeoptim")
    path = ReproductionTarget("slowdown/v_adamw", "small").results(results) / "runs.csv"
    with path.open("a", newline="") as file:
        csv.writer(file).writerows([("pipedream", 2, seed, "completed", 2.3, "", 100, 0.03) for seed in SEEDS])
    pair, _ = pairs_of(results)[1]
    assert (pair.flat.name, pair.v.depths) == ("AdamW, pipeoptim", [2, 16])


def test_page_needs_no_results(tmp_path):
    assert "Nothing has been measured yet." in page(*pairs_of(tmp_path))


def test_figure_has_a_row_for_each_difference(results):
    same, equal = comparisons(pairs_of(results)[1])
    assert [each.holds for each in same.verdict.answers] == [True, False, None]
    assert [each.effect.first for each in equal.verdict.answers] == ["1f1b_v, D = 16", "1f1b_v, D = 32"]
    gain = same.verdict.answers[0].effect
    assert gain.share(gain.gain.middle) == pytest.approx(0.0997 / 2.75, abs=1e-4)


def test_page_and_figure_are_written(results):
    (results / "images").mkdir()
    assert [path.name for path in write(results, results)] == ["v_shaped.svg", "v_shaped.md"]
    assert "P = 8: -0.100" in (results / "images" / "v_shaped.svg").read_text()
