"""Slowdowns of rows whose loss curves are straight lines, so that every number is known."""

import json
import math
from dataclasses import replace

import pytest
from support.refusals import assert_refused
from support.stored_runs import write_run

from pipetrain import cli
from pipetrain.reporting.seed_statistics import t_quantile
from pipetrain.reporting.steps_to_loss import LossCurve
from pipetrain.reporting.sweep import sweep_figure, sweep_page
from pipetrain.reporting.sweep.compared_run import ComparedRun, Point
from pipetrain.reporting.sweep.comparison import collect
from pipetrain.reporting.sweep.groups import SweepGroup
from pipetrain.reporting.sweep.slowdown import STEPS, baseline_of, notes_on, ratio_cell, slowdowns, table_of

INF = math.inf


def run(seed, fall=1.0, *, status="completed", per_step=None, evaluated=True, top1=None):
    """100 steps in which the training loss falls from 100 by `fall` a step, evaluated at half of it every 10 steps."""
    steps = [float(step) for step in range(1, 101)]
    curves = {"loss": [Point(1, (100 - fall * step) / 2, step) for step in range(10, 101, 10)]} if evaluated else {}
    if top1:
        curves["top1"] = [Point(1, top1 * step, step) for step in range(10, 101, 10)]
    settings = {"method": "gpipe", "seed": seed, "optimizer.lr": 0.1}
    losses = LossCurve(steps, [100 - fall * step for step in steps])
    return ComparedRun(
        f"run{seed}", status, settings=settings, numbers={"steps": 100.0}, curves=curves, losses=losses,
        per_step=per_step or {},
    )  # fmt: skip


def group(name, *runs):
    return SweepGroup(name, runs)


def found(*groups, target=None, baseline=0):
    return {each.name: each for each in slowdowns(groups, baseline, target or {})}


def test_baseline_has_slowdown_one_and_is_the_target():
    base = group("base", run(0), run(1))
    both = found(base, group("same", run(0), run(1)))
    # a mean over the last 5 steps of a line is its value 2 steps earlier
    assert (both["train_loss"].target, both["train_loss"].width) == (32.0, 5.0)
    assert "means over 5 steps" in notes_on([both["train_loss"]])[-1]
    assert both["loss"].target == pytest.approx(15.0)
    for each in both.values():
        for row in each.rows:
            assert row.over_baseline[STEPS].middle == pytest.approx(1.0)
            assert [*row.amounts[STEPS].values()] == pytest.approx([70.0, 70.0])
            assert ratio_cell(row.over_baseline[STEPS]) == "1.00"


def test_time_is_left_out_where_that_of_a_step_differs_much_between_seeds():
    base = group("base", *(run(seed, per_step={"seconds": 0.2}) for seed in (0, 1)))
    steady = group("steady", run(0, per_step={"seconds": 0.2}), run(1, per_step={"seconds": 0.29}))
    loaded = group("loaded", run(0, per_step={"seconds": 0.1}), run(1, per_step={"seconds": 0.9}))
    each = found(base, steady, loaded)["loss"]
    heads = {column[0]: column[1:] for column in table_of(each, [base, steady, loaded])}
    assert heads["time, s"][2] == heads["slowdown in time"][2] == "-"
    assert heads["slowdown in time"][1].startswith("1.20 (")
    assert heads["slowdown in steps"] == ("1.00", "1.00", "1.00")
    notes = notes_on([each]), notes_on([found(base, steady)["loss"]])
    assert ["1.5 times between seeds" in " ".join(each) for each in notes] == [True, False]
    assert "time, s" not in [column[0] for column in table_of(found(loaded, base)["loss"], [loaded, base])]


def test_half_the_slope_takes_twice_the_evaluated_steps():
    # 85 steps at 0.8 a step to 32, that is 100 - 0.8 * 85; the smoothed loss lags by 2 steps
    both = found(group("base", run(0), run(1)), group("slow", run(0, 0.8), run(1, 0.8)))
    assert [*both["loss"].rows[1].amounts[STEPS].values()] == pytest.approx([70 / 0.8] * 2)
    assert both["loss"].rows[1].over_baseline[STEPS].middle == pytest.approx(1.25)
    assert [*both["train_loss"].rows[1].amounts[STEPS].values()] == pytest.approx([68 / 0.8 + 2] * 2)


def test_slowdown_is_paired_by_seed_with_its_interval():
    base, slow = group("base", run(0, 1.0), run(1, 0.9)), group("slow", run(0, 0.8), run(1, 0.8))
    ratio = found(base, slow, target={"loss": 15.0})["loss"].rows[1].over_baseline[STEPS]
    logs = [math.log(1 / 0.8), math.log(0.9 / 0.8)]
    half = t_quantile(1) * abs(logs[0] - logs[1]) / 2
    assert math.log(ratio.middle) == pytest.approx(sum(logs) / 2)
    assert math.log(ratio.high) == pytest.approx(sum(logs) / 2 + half)
    assert ratio.how == "paired, 2 seeds"
    assert ratio_cell(ratio) == f"{ratio.middle:.2f} ({ratio.low:.2f} to {ratio.high:.2f})"


def test_row_with_a_part_of_the_seeds_is_paired_with_that_part():
    base = group("base", run(0, 1.0), run(1, 0.9))
    ratio = found(base, group("slow", run(1, 0.72)), target={"loss": 20.0})["loss"].rows[1].over_baseline[STEPS]
    assert ratio.middle == pytest.approx(0.9 / 0.72)
    assert ratio_cell(ratio) == "1.25"


def test_runs_that_diverged_or_ended_before_count_as_infinite():
    base = group("base", run(0), run(1))
    low = group("low", run(0, 0.5), run(1, 0.9))
    lost = group("lost", run(0), run(1, status="diverged"))
    stopped = group("stopped", run(0), run(1, status="failed"))
    rows = found(base, low, lost, stopped)["loss"].rows
    assert [sorted(row.amounts[STEPS].values()) for row in rows[1:]] == [
        [pytest.approx(70 / 0.9), INF], [pytest.approx(70), INF], [pytest.approx(70)],
    ]  # fmt: skip
    assert [ratio_cell(row.over_baseline[STEPS]) for row in rows] == ["1.00", "infinite", "infinite", "1.00"]
    table = table_of(found(base, low, lost)["loss"], [base, low, lost])
    assert table[1] == ("steps", "70 ± 0", "77.8 (1 of 2)", "70 (1 of 2)")


def test_seed_that_diverged_once_and_completed_once_has_completed():
    again = group("again", run(0, status="diverged"), run(0), run(1, status="diverged"))
    assert {seed: each.status for seed, each in again.ended.items()} == {
        (("seed", "0"),): "completed", (("seed", "1"),): "diverged",
    }  # fmt: skip


def test_given_target_replaces_that_of_the_baseline():
    groups = group("base", run(0, top1=0.5)), group("slow", run(0, top1=0.4))
    both = found(*groups, target={"train_loss": 52.0, "top1": 20.0})
    assert [*both] == ["train_loss", "top1"]
    assert [row.amounts[STEPS] for row in both["train_loss"].rows] == [{(("seed", "0"),): 50.0}] * 2
    assert [row.amounts[STEPS] for row in both["top1"].rows] == [{(("seed", "0"),): steps} for steps in (40.0, 50.0)]
    assert both["top1"].heading == "Slowdown to top1 20"


def test_metric_that_falls_is_reached_from_above():
    def falling(fall):
        curves = {"rmse": [Point(1, 1 - fall * step, step) for step in range(10, 101, 10)]}
        return replace(run(0), curves=curves, lower_is_better={"rmse"})

    each = found(group("base", falling(0.005)), group("fast", falling(0.009)), target={"rmse": 0.6})["rmse"]
    assert [[*row.amounts[STEPS].values()] for row in each.rows] == [[pytest.approx(80)], [pytest.approx(400 / 9)]]


def test_target_that_the_baseline_misses_has_no_slowdown():
    rows = found(group("base", run(0)), group("fast", run(0, 1.5)), target={"loss": -10.0})["loss"].rows
    assert [ratio_cell(row.over_baseline[STEPS]) for row in rows] == ["-", "-"]


def test_samples_tokens_and_time_follow_from_a_step():
    base = group("base", run(0, per_step={"samples": 4.0, "tokens": 40.0, "seconds": 0.2}))
    fast = group("fast", run(0, 0.8, per_step={"samples": 4.0, "tokens": 40.0, "seconds": 0.08}))
    large = group("large", run(0, per_step={"samples": 8.0, "seconds": 0.2}))
    each = found(base, fast, large)["loss"]
    assert table_of(each, [base, fast, large]) == [
        ("", "base", "fast", "large"),
        ("steps", "70", "87.5", "70"),
        ("slowdown in steps", "1.00", "1.25", "1.00"),
        ("samples", "280", "350", "560"),
        ("slowdown in samples", "1.00", "1.25", "2.00"),
        ("tokens", "2,800", "3,500", "-"),
        ("time, s", "14", "7", "14"),
        ("slowdown in time", "1.00", "0.50", "1.00"),
    ]


@pytest.mark.parametrize("name", ["gpipe", "method=gpipe", "1 gpipe", "gpipe stages=4", "gpipe partition.stages=4"])
def test_baseline_is_found_by_name_or_settings(tmp_path, name):
    write_run(tmp_path / "a", "method=gpipe", "partition.stages=4")
    write_run(tmp_path / "b", "method=lwp", "partition.stages=4")
    groups = collect([tmp_path], {}).groups
    if name == "1 gpipe":
        groups = [SweepGroup(f"{each.name} {'x' * 40}", each.runs) for each in groups]
    assert groups[baseline_of(groups, name)].runs[0].settings["method"] == "gpipe"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("pipedream", r"--baseline pipedream: no row has it; rows: stages=2, stages=4"),
        ("gpipe", r"--baseline gpipe: 2 rows have it: stages=2, stages=4"),
        ("stages=3", r"no row has it"),
    ],
)
def test_unknown_or_ambiguous_baseline_is_refused_with_rows(tmp_path, name, words):
    for stages in (2, 4):
        write_run(tmp_path / str(stages), "method=gpipe", f"partition.stages={stages}")
    assert_refused(words, baseline_of, collect([tmp_path], {}).groups, name)


def test_baseline_without_completed_run_or_loss_is_refused():
    assert_refused("--baseline base: none of its runs has completed", found, group("base", run(0, status="diverged")))
    bare = ComparedRun("bare", "completed", numbers={"steps": 9.0})
    assert_refused("--baseline base: it recorded no loss", found, group("base", bare))


def written(folder):
    """Two methods under two seeds; the second takes 2.5 times the steps of the first, or diverges."""
    for method, fall, statuses in (("gpipe", 2.0, ("completed",) * 2), ("lwp", 1.0, ("completed", "diverged"))):
        for seed, status in enumerate(statuses):
            path = folder / f"{method}{seed}"
            speeds = {"samples_per_second": None, "predicted_samples_per_second": 5.0, "executor": "simulated"}
            write_run(path, f"method={method}", f"seed={seed}", status=status, samples=100, tokens=1000, **speeds)
            lines = [
                {"kind": "interval", "step": step, "epoch": 1, "wall_s": 0.1, "loss": 30.0 - fall * step}
                for step in range(1, 11)
            ]
            with (path / "metrics.jsonl").open("a") as file:
                file.writelines(json.dumps(line) + "\n" for line in lines)


def test_report_says_slowdowns_in_all_its_files(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    drawn = []
    monkeypatch.setattr(sweep_figure, "draw", lambda path, *compared: (drawn.append(compared), path.touch()))
    monkeypatch.setattr(sweep_page, "metric_curve_svg", lambda *_: "")
    written(tmp_path / "sweep")
    words = ["report", "runs", str(tmp_path / "sweep"), "--baseline", "gpipe", "--target", "train_loss=22"]
    assert cli.carry_out([*words, "-o", str(tmp_path / "out")]) == 0
    text = capsys.readouterr().out
    assert "Slowdown to training loss 22\n" in text
    assert [each.goal for each in drawn[0][2]] == ["training loss 22", "evaluation loss 1"]
    assert "training losses are means" not in text  # over half a step
    rows = [line.split() for line in text[text.index("Slowdown") :].splitlines() if line.startswith(("gpipe", "lwp"))]
    assert rows[0] == ["gpipe", "4", "±", "0", "1.00", "40", "±", "0", "400", "±", "0", "~8", "±", "0", "1.00"]
    assert rows[1][:5] == ["lwp", "8", "(1", "of", "2)"]
    assert "| lwp | 8 (1 of 2) | infinite |" in (tmp_path / "out.md").read_text()
    page = (tmp_path / "out.html").read_text()
    assert all("gpipe is the fastest: " in each for each in (text, (tmp_path / "out.md").read_text(), page))
    assert "<td>infinite</td>" in page
    assert "<p>predicted, ~: of the simulated pipeline" in page
    (train, evaluated) = json.loads((tmp_path / "out.json").read_text())["slowdowns"]
    assert (train["of"], train["target"], evaluated["of"]) == ("train_loss", 22.0, "loss")
    (lwp,) = (row for row in train["rows"] if row["name"] == "lwp")
    assert (sorted(lwp["steps"]["by_run"], key=str), lwp["steps"]["reached"]) == ([8.0, None], 1)
    assert lwp["steps"]["slowdown"]["infinite"] == 1
    assert lwp["seconds"]["reached"] == 1


def test_training_loss_is_a_target_only_of_slowdowns(tmp_path, capsys):
    write_run(tmp_path / "a", "method=gpipe")
    assert cli.carry_out(["report", "runs", str(tmp_path), "--target", "train_loss=2"]) == 2
    assert "--target train_loss=2: is a target of slowdowns" in capsys.readouterr().err
