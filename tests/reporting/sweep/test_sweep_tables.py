"""The tables of a sweep."""

import re
from pathlib import Path

import pytest
from support.stored_runs import STAGES, write_run

from pipetrain.reporting.sweep import sweep_tables
from pipetrain.reporting.sweep.compared_run import ComparedRun
from pipetrain.reporting.sweep.comparison import collect
from pipetrain.reporting.sweep.groups import SweepGroup
from pipetrain.reporting.sweep.sweep_tables import difference_cells


@pytest.fixture(autouse=True)
def wide_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")


def rows(text):
    """Name -> all other cells of its row, of both tables."""
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split("  ") if cell.strip()]
        if len(cells) > 1:
            found.setdefault(cells[0], []).extend(cells[1:])
    return found


def text_of(folder, metric="top1", target=None):
    found = collect([folder], target or {})
    return sweep_tables.text(found._replace(metric=metric))


def test_table_has_final_and_best_values_times_and_memory(tmp_path):
    for seed, top1 in enumerate((80.0, 84.0)):
        write_run(tmp_path / f"a{seed}", "method=gpipe", f"seed={seed}", top1=top1)
    write_run(tmp_path / "b", "method=pipemare", "seed=0", top1=70.0)
    text = text_of(tmp_path, target={"top1": 80.0})
    assert rows(text)["final top1"] == [
        "from the best", "best top1", "to target, s", "to target, epochs", "samples/s", "wall time, s", "runs",
    ]  # fmt: skip
    assert rows(text)["gpipe"] == [
        "82.00 ± 2.83", "-", "87.00 ± 2.83", "15.00 ± 7.07", "1.500 ± 0.707", "300.5 ± 0.7", "20.00 ± 0.00", "2",
        "38%", "1.2 kB", "1.50", "40 B", "7 kB", "2 0",
    ]  # fmt: skip
    assert rows(text)["pipemare"][:6] == ["70.00", "-12.00 undecided", "75.00", "-", "-", "300.0"]
    assert "±: sample standard deviation over seeds" in text


def test_incomplete_run_is_a_row_with_status_and_reason(tmp_path):
    write_run(tmp_path / "a", "method=gpipe")
    write_run(tmp_path / "b", "method=pipemare", "seed=0")
    write_run(
        tmp_path / "c", "method=pipemare", "seed=1", status="diverged", reason="diverged: the loss of step 3 is nan"
    )
    write_run(tmp_path / "d", "method=lwp", status="failed", reason="stage 1 failed", per_stage=[{}, {}], final={})
    text = text_of(tmp_path)
    assert "from the best" not in text
    assert rows(text)["pipemare"][4] == "1 completed, 1 diverged"
    assert rows(text)["lwp"] == ["-", "55.00", "300.0", "20.00", "1 failed", "-", "-", "-", "-", "-", "-"]
    assert f"{tmp_path / 'c'}: diverged: the loss of step 3 is nan" in text
    assert f"{tmp_path / 'd'}: failed: stage 1 failed" in text


def test_target_time_counts_runs_reaching_it_if_not_all(tmp_path):
    for seed, top1 in enumerate((80.0, 84.0)):
        write_run(tmp_path / str(seed), "method=gpipe", f"seed={seed}", top1=top1)
    assert rows(text_of(tmp_path, target={"top1": 84.0}))["gpipe"][2] == "20.00 (1 of 2)"
    assert rows(text_of(tmp_path, target={"top1": 99.0}))["gpipe"][2] == "-"


def test_simulated_throughput_is_marked_as_predicted(tmp_path):
    speeds = {"samples_per_second": None, "simulator_samples_per_second": 7.0, "predicted_samples_per_second": 9.5}
    write_run(tmp_path / "a", "method=gpipe", **speeds)
    assert "~9.500" in rows(text_of(tmp_path))["gpipe"]
    assert "wall time is the simulator's own" in text_of(tmp_path)


@pytest.mark.parametrize("terminal", [80, 120])
def test_tables_fit_terminal_and_long_names_are_numbered(tmp_path, monkeypatch, terminal):
    monkeypatch.setenv("COLUMNS", str(terminal))
    long = [f"model.some_setting_number_{number}={{}}" for number in range(9)]
    for seed in range(4):
        words = [word.format(1 + seed % 2) for word in long]
        write_run(tmp_path / str(seed), "method=pipedream_flush", f"seed={seed}", *words, per_stage=[*STAGES] * 20)
    text = text_of(tmp_path, target={"top1": 1.0})
    assert max(map(len, text.splitlines())) <= terminal
    found = rows(text)
    assert found["1 pipedream_flush"][0] == found["2 pipedream_flush"][0] == "50.00 ± 0.00"
    assert found["1 pipedream_flush"][-1] == "2 0 ... 36 stages ... 2 0"
    (legend,) = [part for part in text.split("\n\n") if part.startswith("1  some_setting_number_0=1")]
    assert "2  some_setting_number_0=2" in legend
    assert "±" in found["1 pipedream_flush"][0], "heads of all tables, each with the names of its rows"
    assert text.count("1 pipedream_flush") == (3 if terminal == 120 else 5)


def test_row_shows_seed_count_if_fewer(tmp_path):
    for number, seed in enumerate((0, 0, 1)):
        write_run(tmp_path / str(number), f"seed={seed}", top1=50.0 + seed)
    assert rows(text_of(tmp_path))["gpipe"][4] == "3 runs, 2 seeds"
    write_run(tmp_path / "3", "seed=1", status="failed")
    assert rows(text_of(tmp_path))["gpipe"][4] == "3 completed, 1 failed, 2 seeds"
    assert "±" not in text_of(tmp_path / "0")


def test_damaged_run_is_named_with_reason_and_has_no_row(tmp_path):
    for name in ("a", "b"):
        write_run(tmp_path / name)
    (tmp_path / "b" / "summary.json").write_text("[" * 100_000)
    text = text_of(tmp_path)
    said = text.splitlines()[-1]
    assert said.startswith(f"{tmp_path / 'b'}: skipped, as it is damaged: ")
    assert "nested too deeply" in said
    assert "damaged" not in rows(text)


def test_runs_of_several_commits_in_a_row_are_told(tmp_path):
    for seed, commit in enumerate("ab"):
        write_run(tmp_path / str(seed), f"seed={seed}", git_commit=commit * 40)
    assert "runs of several commits: gpipe; --by commit tells them apart" in text_of(tmp_path)


def test_runs_without_evaluation_have_a_table(tmp_path):
    write_run(tmp_path / "a", final={}, best={})
    assert rows(text_of(tmp_path, None))["samples/s"] == ["wall time, s", "runs"]
    assert rows(text_of(tmp_path, None))["gpipe"][0] == "300.0"


def test_markdown_has_the_same_cells(tmp_path):
    write_run(tmp_path / "a", "method=gpipe", top1=80.0)
    lines = sweep_tables.markdown(collect([tmp_path], {})._replace(metric="top1")).splitlines()
    assert [cell.strip() for cell in lines[2].split("|")[1:-1]] == ["gpipe", "80.00", "85.00", "300.0", "20.00", "1"]


def test_markdown_of_foreign_runs_has_no_html_link_or_further_cell(tmp_path):
    evil = "<img src=x onerror=f()>|[y](javascript:f())"
    write_run(tmp_path / "a", f"method={evil}")
    write_run(tmp_path / "b", status="failed", reason=evil)
    text = sweep_tables.markdown(collect([tmp_path], {})._replace(metric="top1"))
    assert text.count("javascript") >= 2
    assert "<" not in text
    assert re.search(r"(?<!\\)\[", text) is None
    for table in text.split("\n\n")[:3]:
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in table.splitlines()}) == 1


def test_token_throughput_is_shown_if_only_some_count_tokens(tmp_path):
    for number in (1, 2):
        write_run(tmp_path / "lm" / str(number), f"model=gpt{number}", tokens_per_second=4000.0 * number)
    found = rows(text_of(tmp_path / "lm"))
    assert found["final top1"] == ["from the best", "best top1", "tokens/s", "wall time, s", "runs"]
    assert (found["model=gpt1"][3], found["model=gpt2"][3]) == ("4000", "8000")
    write_run(tmp_path / "lm" / "3", "model=gpt3")
    found = rows(text_of(tmp_path / "lm"))
    assert found["final top1"] == ["from the best", "best top1", "samples/s", "tokens/s", "wall time, s", "runs"]
    assert (found["model=gpt1"][3:5], found["model=gpt3"][3:5]) == (["300.0", "4000"], ["300.0", "-"])


def group(*values, status="completed", name="top1"):
    runs = [
        ComparedRun(Path("a"), status, settings={"seed": seed}, numbers={name: value})
        for seed, value in enumerate(values)
    ]
    return SweepGroup("a", runs)


def test_significant_differences_have_intervals_else_undecided():
    groups = [group(90.0, 91.0), group(89.0, 91.5), group(80.0, 81.1), group(70.0), group(1.0, 2.0, status="failed")]
    assert difference_cells(groups, "top1") == [
        "-", "-0.25 ± 9.53 undecided", "-9.95 ± 2.45", "-20.50 undecided", "-",
    ]  # fmt: skip


def test_incomplete_runs_and_single_rows_are_not_compared():
    assert difference_cells([group(9.0, 8.0, status="failed"), group(7.0, 6.0)], "top1") == []
    assert difference_cells([group(9.0, 8.0)], "top1") == []
    assert difference_cells([group(9.0, 8.0)] * 2, None) == []


def test_rows_with_a_run_that_missed_the_target_are_not_compared():
    all_reached = group(100.0, 110.0, 120.0, name="target_s")
    one_missed = group(50.0, 51.0, name="target_s")
    one_missed.runs.append(ComparedRun(Path("a"), "completed", settings={"seed": 2}))
    assert difference_cells([all_reached, one_missed], "target_s") == []
    assert difference_cells([one_missed, all_reached], "target_s") == []


@pytest.mark.parametrize(
    ("name", "values", "shown"),
    [("memory_bytes", (1e6, 2e6), "+1 MB undecided"), ("idle_share", (0.2, 0.1), "-10% undecided")],
)
def test_differences_are_in_the_unit_of_their_column(name, values, shown):
    assert difference_cells([group(value, name=name) for value in values], name)[1] == shown
