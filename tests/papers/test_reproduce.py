"""`python -m papers reproduce`: runs presets as sweeps and keeps what they measured."""

import csv
import json
import os
import shutil
import signal
import sys
import threading
import time
from pathlib import Path

import pytest
from support.stored_runs import write_run

from papers import reproduce
from papers.cli import PROGRAM
from papers.compared import compared_runs
from papers.reproduce import carried_out
from papers.results import keep_results
from papers.targets import ReproductionTarget, SweepRound
from pipetrain import cli
from pipetrain.engine.errors import ExitCode
from pipetrain.runner.tracking.run_lock import locked

CHILD = """
import os, pathlib, signal, sys, time
signal.signal(signal.{name}, lambda *_: sys.exit(75))
assert os.getpgrp() == os.getpid()
pathlib.Path({ready!r}).touch()
time.sleep(60)
"""


def test_exit_code_is_that_of_the_command():
    assert carried_out([sys.executable, "-c", "raise SystemExit(3)"]) == 3


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_signal_is_forwarded_and_command_end_awaited(tmp_path, name):
    ready, number = tmp_path / "ready", getattr(signal, name)

    def interrupt() -> None:
        while not ready.exists():
            time.sleep(0.01)
        os.kill(os.getpid(), number)

    before = signal.getsignal(number)
    thread = threading.Thread(target=interrupt, daemon=True)
    thread.start()
    assert carried_out([sys.executable, "-c", CHILD.format(name=name, ready=str(ready))]) == 75
    thread.join()
    assert signal.getsignal(number) is before


def test_list_prints_the_commands_and_runs_none(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert cli.carry_out(["reproduce", "zhang/table2_lenet5", "--list"], PROGRAM) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("pipetrain run --multirun experiment=zhang/table2_lenet5 dataset=fashion_mnist_mini ")
    assert second.endswith("hydra.sweep.dir=outputs/reproduce/zhang/table2_lenet5_baseline/small resume=auto")
    assert not list(tmp_path.iterdir())


def test_unknown_name_is_refused_in_one_line(capsys):
    assert cli.carry_out(["reproduce", "zhang/table22"], PROGRAM) == 2
    assert "pipetrain list experiments shows them" in capsys.readouterr().err


@pytest.mark.parametrize("ended", [ExitCode.INTERRUPTED, ExitCode.PREEMPTED])
def test_what_was_measured_until_it_was_broken_off_is_kept(tmp_path, monkeypatch, ended):
    monkeypatch.setattr(reproduce, "carried_out", lambda _words: ended)
    words = ["reproduce", "slowdown/soap", "--outputs", str(tmp_path / "runs"), "-o", str(tmp_path / "out")]
    assert cli.carry_out(words, PROGRAM) == ended
    assert not (tmp_path / "out").exists()
    runs, asked = tmp_path / "runs" / "slowdown" / "soap" / "small", ("method=pipedream", "partition.stages=2")
    for number in (1, 2):
        write_run(runs / f"round-{number}" / "0", *asked, f"seed={number}", dataset="austen")
    write_run(runs / "round-3" / "runs" / "tuning", *asked, "seed=1000")  # of a comparison, which is kept apart
    assert cli.carry_out(words, PROGRAM) == ended
    with (tmp_path / "out" / "slowdown" / "soap" / "small" / "runs.csv").open() as file:
        rows = [(row["dataset"], row["method"], row["partition.stages"], row["seed"]) for row in csv.DictReader(file)]
    assert rows == [("austen", "pipedream", "2", "1"), ("austen", "pipedream", "2", "2")]


def test_failing_experiment_is_listed_last_and_stops_no_other(tmp_path, monkeypatch, capsys):
    def ended(words):
        if "experiment=zhang/table4_resnet20" in words:
            return ExitCode.FAILED
        (folder,) = (word.partition("=")[2] for word in words if word.startswith("hydra.sweep.dir="))
        write_run(Path(folder) / "0", "method=sequential")
        return ExitCode.COMPLETED

    monkeypatch.setattr(reproduce, "carried_out", ended)
    monkeypatch.setattr(reproduce, "keep_results", lambda _target, _runs, folder, **_: [folder])
    words = ["reproduce", "zhang/table4", "--outputs", str(tmp_path / "runs"), "-o", str(tmp_path / "out")]
    assert cli.carry_out(words, PROGRAM) == ExitCode.FAILED
    *_, last, failed = capsys.readouterr().out.splitlines()
    assert last.startswith("1 of 3 experiments did not complete")
    assert failed == "  zhang/table4_resnet20: failed"


def test_results_name_runs_by_sweep_and_omit_shared_timings(tmp_path):
    write_run(tmp_path / "runs" / "0", "method=gpipe", status="diverged", reason="diverged")
    target = ReproductionTarget("zhang/table2_lenet5_baseline", "small")
    for path in keep_results(target, tmp_path / "runs", tmp_path / "out", timed=False):
        assert str(tmp_path) not in path.read_text(encoding="utf-8")
    (group,) = json.loads((tmp_path / "out" / "sweep.json").read_text())["groups"]
    assert {"top1", "steps"} <= group["mean"].keys()
    assert not {"wall_s", "samples_per_second", "idle_share"} & group["mean"].keys()
    curves = [curve for run in group["runs"] for curve in run["curves"].values()]
    assert curves
    assert all(len(point) <= 3 for curve in curves for point in curve)
    assert json.loads((tmp_path / "out" / "made.json").read_text())["timed"] is False


def test_runs_that_reach_the_baselines_loss_have_their_steps(tmp_path):
    falls = {(1, 0): 0.2, (1, 1): 0.2, (8, 0): 0.15, (8, 1): 0.1}
    for number, ((stages, seed), fall) in enumerate(falls.items()):
        run = tmp_path / "runs" / str(number)
        write_run(run, "method=pipedream", f"partition.stages={stages}", f"seed={seed}")
        lines = [{"kind": "interval", "step": step, "epoch": 1, "wall_s": 0.1, "loss": 4.2 - fall * step}
                 for step in range(1, 11)]  # fmt: skip
        with (run / "metrics.jsonl").open("a") as file:
            file.writelines(json.dumps(line) + "\n" for line in lines)
    keep_results(ReproductionTarget("basis_rotation/adamw", "small"), tmp_path / "runs", tmp_path / "out")
    content = json.loads((tmp_path / "out" / "sweep.json").read_text())
    steps = {group["name"]: [run.get("loss_steps") for run in group["runs"]] for group in content["groups"]}
    assert steps == {"stages=1": [pytest.approx(7.0)] * 2, "stages=8": [pytest.approx(28 / 3), None]}
    assert (content["metric"], content["slowdowns"][0]["target"]) == ("loss", 2.8)


def test_sweeps_that_are_kept_beside_comparisons_are_not_repeated(tmp_path, monkeypatch, capsys):
    settings = [["partition.stages=1"], ["partition.stages=2,8"], ["compare", "partition.stages=1"]]
    rounds = property(lambda self: [SweepRound(self, number, words) for number, words in enumerate(settings, 1)])
    monkeypatch.setattr(ReproductionTarget, "rounds", rounds)
    target, runs = ReproductionTarget("slowdown/soap", "small"), tmp_path / "runs"
    results = target.results(tmp_path / "out")
    commands = []
    monkeypatch.setattr(reproduce, "carried_out", lambda words: commands.append(words[3]) or ExitCode.COMPLETED)

    def repeated() -> list[str]:
        commands.clear()
        assert cli.carry_out(["reproduce", target.experiment, "-o", str(tmp_path / "out")], PROGRAM) == 0
        return list(commands)

    monkeypatch.chdir(tmp_path)
    for number, stages in enumerate(("1", "2", "8")):
        for seed in (1, 2, 3):
            write_run(runs / f"{number}-{seed}", f"partition.stages={stages}", f"seed={seed}", dataset="austen")
    keep_results(target, runs, results)
    assert repeated() == ["compare"]
    assert [line for line in capsys.readouterr().out.splitlines() if "already" in line] == [
        f"slowdown/soap: {results} already has all of round {number}; use another -o to measure it again"
        for number in (1, 2)
    ]
    shutil.rmtree(runs / "2-3")
    keep_results(target, runs, results)
    assert repeated() == ["run", "run", "compare"]
    write_run(runs / "2-3", "partition.stages=8", "seed=3", dataset="austen")
    keep_results(target, runs, results)
    made = json.loads((results / "made.json").read_text())
    (results / "made.json").write_text(json.dumps(made | {"command": "pipetrain run --multirun experiment=other"}))
    assert repeated() == ["run", "run", "compare"]


def test_runs_of_other_settings_are_moved_away(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(reproduce, "carried_out", lambda _words: ExitCode.FAILED)
    target = ReproductionTarget("zhang/table2_lenet5_baseline", "small")
    words = ["reproduce", target.experiment, "--outputs", str(tmp_path), "-o", str(tmp_path / "out")]
    for _ in range(2):
        cli.carry_out(words, PROGRAM)
        (target.runs(tmp_path) / "0_seed=0").mkdir(exist_ok=True)
    assert "are now in" not in capsys.readouterr().out
    monkeypatch.setattr(ReproductionTarget, "settings", property(lambda _: ["train.epochs=7"]))
    cli.carry_out(words, PROGRAM)
    aside = target.runs(tmp_path).with_name("small-earlier")
    assert f"the runs of other settings are now in {aside}" in capsys.readouterr().out
    assert (aside / "0_seed=0").is_dir()
    assert not (target.runs(tmp_path) / "0_seed=0").exists()


def test_no_round_keeps_runs_of_other_settings(tmp_path, monkeypatch):
    parts = (["partition.stages=1"], ["partition.stages=2"], ["compare"])
    settings, ran = [], []
    rounds = property(lambda self: [SweepRound(self, number, words) for number, words in enumerate(parts, 1)])

    def train(words):
        if "compare" not in words:
            (folder,) = (Path(word.partition("=")[2]) for word in words if word.startswith("hydra.sweep.dir="))
            ran.append(folder.name)
            write_run(folder / "0", f"partition.stages={folder.name[-1]}", *settings[:1], dataset="austen")
        return ExitCode.COMPLETED

    monkeypatch.setattr(ReproductionTarget, "rounds", rounds)
    monkeypatch.setattr(ReproductionTarget, "settings", property(lambda _: list(settings)))
    monkeypatch.setattr(reproduce, "carried_out", train)
    monkeypatch.setattr("papers.results.comparison.write", lambda *_: [])
    for rate in (0.01, 0.02):
        settings[:] = [f"optimizer.lr={rate}", "seed=0"]
        words = ["reproduce", "slowdown/soap", "--outputs", str(tmp_path / "runs"), "-o", str(tmp_path / "out")]
        assert cli.carry_out(words, PROGRAM) == 0
    with (tmp_path / "out" / "slowdown" / "soap" / "small" / "runs.csv").open() as file:
        rows = [(row["partition.stages"], row["optimizer.lr"]) for row in csv.DictReader(file)]
    assert ran == ["round-1", "round-2"] * 2
    assert rows == [("1", "0.02"), ("2", "0.02")]


def test_runs_of_a_round_are_moved_out_of_the_folder_that_is_kept(tmp_path):
    rounds = [SweepRound(ReproductionTarget("slowdown/soap", "small"), 1, words) for words in (["seed=1"], ["seed=2"])]
    target, first = rounds[0].target, rounds[0].runs(tmp_path)
    assert len(target.rounds) > 1
    assert reproduce._set_aside(rounds[0], tmp_path) is None
    (first / "0_seed=1").mkdir()
    with locked(first):
        assert reproduce._set_aside(rounds[1], tmp_path) is None
    aside = reproduce._set_aside(rounds[1], tmp_path)
    assert aside == target.runs(tmp_path).with_name("small-round-1-earlier")
    assert (aside / "0_seed=1").is_dir()


def test_all_runs_that_are_kept_stay_if_a_repetition_is_broken_off(tmp_path, monkeypatch, capsys):
    target = ReproductionTarget("zhang/table2_lenet5_baseline", "small")
    results, runs = target.results(tmp_path / "out"), tmp_path / "made"
    for seed in range(3):
        write_run(runs / str(seed), "method=sequential", f"seed={seed}")
    keep_results(target, runs, results)
    before = (results / "runs.csv").read_text()
    monkeypatch.setattr(reproduce, "has_every_run", lambda *_: True)
    monkeypatch.setattr(reproduce, "carried_out", lambda _words: ExitCode.INTERRUPTED)
    write_run(target.runs(tmp_path) / "0", "method=sequential", "seed=0")
    cli.carry_out(["reproduce", target.experiment, "--outputs", str(tmp_path), "-o", str(tmp_path / "out")], PROGRAM)
    assert (results / "runs.csv").read_text() == before
    assert "stays as it is" in capsys.readouterr().out


def test_list_computes_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert cli.carry_out(["reproduce", "pipedream/fig15", "--list"], PROGRAM) == 0
    assert capsys.readouterr().out == "# pipedream/fig15: needs no training\n"


@pytest.mark.slow
def test_rounds_that_compare_are_kept_and_not_repeated(tmp_path, monkeypatch, capfd):
    tiny = ["model.layers=1", "model.width=16", "model.heads=2", "dataset=austen", "dataset.tokens=characters"]
    tiny += ["dataset.positions=8", "dataset.vocabulary_size=null", "dataset.limit=64", "train.batch_size=8"]
    tiny += ["train.max_steps=null", "lr_schedule.warmup=1", "optimizer.lr=0.01", "seed=1,2,3"]
    options = ["--seeds", "2", "--tuning-seeds", "1"]
    settings = [["compare", f"partition.stages={stages}", *options] for stages in ("1", "2")]
    rounds = property(lambda self: [SweepRound(self, number, words) for number, words in enumerate(settings, 1)])
    monkeypatch.setattr(ReproductionTarget, "settings", property(lambda _: tiny))
    monkeypatch.setattr(ReproductionTarget, "rounds", rounds)
    monkeypatch.setattr(
        reproduce, "carried_out", lambda words: cli.carry_out(words[3:])
    )  # behind `python -m pipetrain`
    words = ["reproduce", "slowdown/soap", "--outputs", str(tmp_path / "runs"), "-o", str(tmp_path / "out")]
    assert cli.carry_out(words, PROGRAM) == 0
    results = tmp_path / "out" / "slowdown" / "soap" / "small"
    target = ReproductionTarget("slowdown/soap", "small")
    rows = [row for _, found in compared_runs(target, results) for row in found]
    assert [(row["partition.stages"], row["seed"]) for row in rows] == [("1", "0"), ("1", "1"), ("2", "0"), ("2", "1")]
    assert all(row["loss"] and row["loss_steps"] for row in rows[:2])
    first, second = (json.loads((results / f"round-{number}" / "made.json").read_text()) for number in (1, 2))
    assert first["targets"] == second["targets"]
    assert first["command"].startswith("pipetrain compare experiment=slowdown/soap model.layers=1 ")
    assert "seed=" not in first["command"]
    with (results / "round-2" / "comparison.csv").open(newline="") as file:
        (tuned,) = (row["tuned"] for row in csv.DictReader(file))
    assert tuned == f"optimizer.lr={rows[-1]['optimizer.lr']}"
    shutil.rmtree(tmp_path / "runs")
    capfd.readouterr()
    assert cli.carry_out(words, PROGRAM) == 0
    assert capfd.readouterr().out.splitlines() == [
        f"slowdown/soap: {results} already has all of round {number}; use another -o to measure it again"
        for number in (1, 2)
    ]
    assert [row for _, found in compared_runs(target, results) for row in found] == rows


@pytest.mark.slow
def test_second_call_trains_nothing_and_keeps_numbers(tmp_path, monkeypatch):
    tiny = ["dataset=fashion_mnist_mini", "dataset.limit=64", "train.batch_size=16", "train.epochs=1", "seed=0,1"]
    monkeypatch.setattr(ReproductionTarget, "settings", property(lambda _: tiny))
    words = [
        "reproduce",
        "zhang/table2_lenet5_baseline",
        "--outputs",
        str(tmp_path / "runs"),
        "-o",
        str(tmp_path / "out"),
    ]
    kept = []
    for _ in range(2):
        assert cli.carry_out(words, PROGRAM) == 0
        folder = tmp_path / "out" / "zhang" / "table2_lenet5_baseline" / "small"
        with (folder / "runs.csv").open() as file:
            kept.append([(row["seed"], row["status"], row["loss"]) for row in csv.DictReader(file)])
    assert [row[:2] for row in kept[0]] == [("0", "completed"), ("1", "completed")]
    assert kept[0] == kept[1]
    made = json.loads((folder / "made.json").read_text())
    assert made["seeds"] == [0, 1]
    assert made["command"].startswith("pipetrain run --multirun experiment=zhang/table2_lenet5_baseline")
    assert made["made_with"]["torch_version"]
    assert (folder / "sweep.json").is_file()
