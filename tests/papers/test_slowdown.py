"""The page of slowdowns: which runs count, what is compared, and where the data decide."""

import csv
import json
import math
from pathlib import Path

import pytest

from papers.slowdown import lines_of, page, panels, slowdown_rows, write
from papers.targets import ReproductionTarget, command_of

COLUMNS = ("method", "partition.stages", "seed", "status", "loss_steps", "early_loss_steps", "optimizer.lr", "loss")


def stored(folder, preset, rows, rate=0.03, number=None):
    """Runs of the sweeps of a preset, or of the comparison of this number."""
    target = ReproductionTarget(f"slowdown/{preset}", "small")
    this = target.rounds[number - 1] if number else target
    path = target.results(folder) / (this.name if number else "") / "runs.csv"
    path.parent.mkdir(parents=True)
    path.with_name("made.json").write_text(json.dumps({"command": command_of(this.words(Path("DIR")))}))
    with path.open("w", newline="") as file:
        csv.writer(file).writerows(
            [COLUMNS, *((*row, rate, "" if row[3] == "diverged" else 2 + row[2] / 10) for row in rows)]
        )


def rows_of(lines):
    """(line, stages) -> its row of the table of slowdowns."""
    return {(row["line"], row["stages"]): row for row in slowdown_rows("of one stage", lines)}


@pytest.fixture
def results(tmp_path):
    control, better = [], []
    for seed in (1, 2, 3):
        control += [("pipedream", 1, seed, "completed", 700 + seed, 300), ("pipedream", 8, seed, "diverged", "", "")]
        control += [("pipedream", 2, seed, "completed", 900, 600 + seed)]
        better += [("pipedream", 1, seed, "completed", 700, 300), ("pipedream", 8, seed, "completed", "", 450 + seed)]
        better += [("pipedream", 2, seed, "completed", 777, 303)]
    control.append(("pipedream", 2, 4, "unfinished", "", ""))
    stored(tmp_path, "adamw", control)
    stored(tmp_path, "soap", better)
    return tmp_path


def test_slowdown_is_over_one_stage_and_infinite_without_the_loss(results):
    scale, (control, better) = lines_of(results)
    assert (scale, control.name, better.name, better.depths) == ("small", "AdamW", "SOAP", [1, 2, 8])
    assert better.slowdown("loss_steps", 2).middle == pytest.approx(777 / 700)
    assert better.slowdown("early_loss_steps", 8).middle == pytest.approx(452 / 300, rel=1e-4)
    assert math.isinf(better.slowdown("loss_steps", 8).middle)
    assert math.isinf(control.slowdown("early_loss_steps", 8).middle)


def test_runs_of_other_settings_are_left_out(results, monkeypatch):
    monkeypatch.setattr(ReproductionTarget, "settings", property(lambda _: ["train.batch_size=8"]))
    assert lines_of(results) == ("small", [])


def test_depth_without_the_seeds_of_one_stage_has_no_slowdown(results):
    stored(results, "muon", [("pipedream", 1, 1, "completed", 700, 300), ("pipedream", 2, 2, "completed", 700, 300)])
    muon = lines_of(results)[1][1]
    assert muon.name == "Muon"
    assert muon.slowdown("loss_steps", 2) is None


def test_target_that_one_stage_misses_gives_no_slowdown(results):
    rows = [("pipedream", 1, seed, "completed", 700 if seed < 3 else "", 300 if seed < 3 else "") for seed in (1, 2, 3)]
    rows += [("pipedream", stages, seed, "completed", 900, 600) for seed in (1, 2, 3) for stages in (2, 8)]
    stored(results, "nadam", rows)
    scale, lines = lines_of(results)
    nadam = next(line for line in lines if line.name == "NAdam")
    assert nadam.slowdown("loss_steps", 2) is None
    text = page(scale, lines, tuned=[])
    assert rows_of(lines)["NAdam", 8]["slowdown to the loss after 10%"] == "-"
    (row,) = (line for line in text.splitlines() if line.startswith("| NAdam with a momentum"))
    assert [cell.strip() for cell in row.split("|")[3:6]] == ["-", "infinite", "undecided"]
    assert not any("NAdam" in line for line in text.splitlines() if "to the loss at 10%: AdamW" in line)
    early, late, final = panels(lines)
    place = [line.name for line in lines].index("NAdam")
    assert [panel.rows[place][1] is None for panel in (early, late, final)] == [True, True, False]


def test_page_says_what_is_slowed_down_less_than_stashing(results):
    scale, lines = lines_of(results)
    text = page(scale, lines, tuned=[])
    assert "- D = 2, to the loss at 10%: AdamW 2.01 (2.00 to 2.01); less: SOAP." in text
    assert "- D = 8, to the loss at 10%: AdamW infinite; less: SOAP." in text
    rows = rows_of(lines)
    early, late = (f"slowdown to the loss after {share}%" for share in (10, 70))
    assert (rows["SOAP", 8][early], rows["SOAP", 8][f"{early}, than AdamW's"]) == ("1.51 (1.50 to 1.51)", "less")
    assert [rows["SOAP", stages][late] for stages in (1, 2, 8)] == ["", "1.11", "infinite"]
    assert [rows["AdamW", stages]["loss"] for stages in (1, 2, 8)] == ["2.200 ± 0.100", "2.200 ± 0.100", "diverged"]


def test_line_with_the_bits_of_stashing_is_said_to_have_them(results):
    rows = [("pipedream", 1, seed, "completed", 700 + seed, 300) for seed in (1, 2, 3)]
    rows += [("pipedream", 2, seed, "completed", 900, 600 + seed) for seed in (1, 2, 3)]
    stored(results, "lr_by_delay", rows)
    found = rows_of(lines_of(results)[1])["AdamW, rates by delay", 2]
    assert found["slowdown to the loss after 10%, than AdamW's"] == "same"


def test_cells_are_framed_where_the_slowdown_is_less_and_marked_where_undecided(results):
    early = panels(lines_of(results)[1])[0]
    assert early.heads == ["D = 2", "8"]
    (adamw, soap) = early.rows
    assert [(cell.text, cell.framed) for cell in adamw] == [("2.01", False), ("∞", False)]
    assert [(cell.text, cell.framed) for cell in soap] == [("1.01", True), ("1.51", True)]
    assert soap[1].title == "SOAP, D = 8: 1.51 (1.50 to 1.51), less than AdamW"


def test_results_that_papers_report_are_set_beside_those_seen(results):
    text = page(*lines_of(results), tuned=[])
    (row,) = (line for line in text.splitlines() if line.startswith("| it costs SOAP less"))
    cells = [cell.strip() for cell in row.split("|")[2:-1]]
    assert cells == ["2", "1.01", "2.01 (2.00 to 2.01)", "less", "1.00", "1.00", "same"]


def test_page_needs_no_results(tmp_path):
    assert "Nothing has been measured yet." in page(*lines_of(tmp_path / "none"), tuned=[])


def test_page_figure_and_table_are_written(results):
    (results / "images").mkdir()
    assert [path.name for path in write(results, results)] == ["slowdown.svg", "verdicts.csv", "slowdown.md"]
    assert "SOAP, D = 8: 1.51" in (results / "images" / "slowdown.svg").read_text()


def test_tuned_runs_have_their_own_part_with_rates_and_share_one_stage(tmp_path, results):
    one = [("pipedream", 1, 0, "completed", 700, 300)]
    deep = [(name, 8, 0, "completed", 900, 600) for name in ("pipedream", "lwp")]
    stored(tmp_path, "adamw", [*one, *deep], rate=0.01, number=3)
    _, tuned = lines_of(tmp_path, tuned=True)
    control, lwp = tuned
    assert (control.name, lwp.name, lwp.depths) == ("AdamW", "AdamW, lwp", [1, 8])
    assert lwp.slowdown("early_loss_steps", 8).middle == pytest.approx(2)
    text = page(*lines_of(results), tuned)
    assert {rows_of(tuned)["AdamW, lwp", stages]["rate"] for stages in (1, 8)} == {"0.01"}
    assert text.index("**Measured at small scale: 18 of") < text.index("**Measured: 3 of")
