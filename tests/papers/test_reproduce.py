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
from papers.kept_runs import read_groups
from papers.presets import FOLDER
from papers.reproduce import carried_out
from papers.results import keep_results
from papers.targets import ReproductionTarget, SweepRound
from pipetrain import cli
from pipetrain.engine.errors import ExitCode
from pipetrain.runner.tracking.run_lock import locked

LENET5, SOAP = (ReproductionTarget(name, "small") for name in ("zhang/table2_lenet5_baseline", "slowdown/soap"))
PRESETS = "--config-dir papers/conf"
CHILD = """
import os, pathlib, signal, sys, time
signal.signal(signal.{name}, lambda *_: sys.exit(75))
assert os.getpgrp() == os.getpid()
pathlib.Path({ready!r}).touch()
time.sleep(60)
"""


def reproduced(folder, experiment):
    """The exit code of `reproduce`, with runs and results below a folder."""
    words = ["reproduce", experiment, "--outputs", str(folder / "runs"), "-o", str(folder / "out")]
    return cli.carry_out(words, PROGRAM)


def rounds_of(*parts):
    """In place of the rounds of a preset: those with these settings."""
    return property(lambda self: [SweepRound(self, number, words) for number, words in enumerate(parts, 1)])


def folder_of(words):
    """Where a command puts its sweep."""
    (folder,) = (Path(word.partition("=")[2]) for word in words if word.startswith("hydra.sweep.dir="))
    return folder


def rows_of(folder):
    """The table of runs that is kept of an experiment."""
    with (folder / "runs.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def already_there(results, *numbers):
    """The lines on rounds that are not measured again."""
    line = "slowdown/soap: {} already has all of round {}; use another -o to measure it again"
    return [line.format(results, number) for number in numbers]


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
    assert cli.carry_out(["reproduce", "pipedream/fig15", "--list"], PROGRAM) == 0
    first, second, computed = capsys.readouterr().out.splitlines()
    assert first.startswith(f"pipetrain run --config-dir {FOLDER} --multirun experiment=zhang/table2_lenet5 dataset=")
    assert second.endswith("hydra.sweep.dir=outputs/reproduce/zhang/table2_lenet5_baseline/small resume=auto")
    assert computed == "# pipedream/fig15: needs no training"
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("ended", [ExitCode.INTERRUPTED, ExitCode.PREEMPTED])
def test_what_was_measured_until_it_was_broken_off_is_kept(tmp_path, monkeypatch, ended):
    monkeypatch.setattr(reproduce, "carried_out", lambda _words: ended)
    assert reproduced(tmp_path, "slowdown/soap") == ended
    assert not (tmp_path / "out").exists()
    runs, asked = tmp_path / "runs" / "slowdown" / "soap" / "small", ("method=pipedream", "partition.stages=2")
    for number in (1, 2):
        write_run(runs / f"round-{number}" / "0", *asked, f"seed={number}", dataset="austen")
    write_run(runs / "round-3" / "runs" / "tuning", *asked, "seed=1000")  # of a comparison, which is kept apart
    assert reproduced(tmp_path, "slowdown/soap") == ended
    rows = rows_of(tmp_path / "out" / "slowdown" / "soap" / "small")
    found = [(row["dataset"], row["method"], row["partition.stages"], row["seed"]) for row in rows]
    assert found == [("austen", "pipedream", "2", "1"), ("austen", "pipedream", "2", "2")]


def test_failing_experiment_is_listed_last_and_stops_no_other(tmp_path, monkeypatch, capsys):
    def ended(words):
        if "experiment=zhang/table4_resnet20" in words:
            return ExitCode.FAILED
        write_run(folder_of(words) / "0", "method=sequential")
        return ExitCode.COMPLETED

    monkeypatch.setattr(reproduce, "carried_out", ended)
    monkeypatch.setattr(reproduce, "keep_results", lambda _target, _runs, folder, **_: [folder])
    assert reproduced(tmp_path, "zhang/table4") == ExitCode.FAILED
    *_, last, failed = capsys.readouterr().out.splitlines()
    assert last.startswith("1 of 3 ")
    assert failed == "  zhang/table4_resnet20: failed"


def test_results_name_runs_by_sweep_and_omit_shared_timings(tmp_path):
    write_run(tmp_path / "runs" / "0", "method=gpipe", status="diverged", reason="diverged")
    for path in keep_results(LENET5, tmp_path / "runs", tmp_path / "out", timed=False):
        assert str(tmp_path) not in path.read_text(encoding="utf-8")
    (group,) = read_groups(tmp_path / "out")
    assert {"top1", "steps"} <= group.columns
    assert not {"wall_s", "samples_per_second", "idle_share"} & group.columns
    points = [point for run in group.runs for curve in run.curves.values() for point in curve]
    assert points
    assert {point.seconds for point in points} == {None}
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
    groups, made = read_groups(tmp_path / "out"), json.loads((tmp_path / "out" / "made.json").read_text())
    steps = {group.name: [run.values.get("loss_steps") for run in group.runs] for group in groups}
    assert steps == {"stages=1": [pytest.approx(7.0)] * 2, "stages=8": [pytest.approx(28 / 3), None]}
    assert (made["metric"], made["targets"]["loss_steps"]) == ("loss", 2.8)


@pytest.mark.slow
def test_sweeps_that_are_kept_beside_comparisons_are_not_repeated(tmp_path, monkeypatch, capsys):
    parts = (["partition.stages=1"], ["partition.stages=2,8"], ["compare", "partition.stages=1"])
    monkeypatch.setattr(ReproductionTarget, "rounds", rounds_of(*parts))
    runs, results = tmp_path / "made", SOAP.results(tmp_path / "out")
    commands = []
    monkeypatch.setattr(reproduce, "carried_out", lambda words: commands.append(words[3]) or ExitCode.COMPLETED)

    def repeated() -> list[str]:
        keep_results(SOAP, runs, results)
        return measured()

    def measured() -> list[str]:
        commands.clear()
        assert reproduced(tmp_path, SOAP.experiment) == 0
        return list(commands)

    for number, stages in enumerate(("1", "2", "8")):
        for seed in (1, 2, 3):
            write_run(runs / f"{number}-{seed}", f"partition.stages={stages}", f"seed={seed}", dataset="austen")
    assert repeated() == ["compare"]
    printed = capsys.readouterr().out.splitlines()
    assert [line for line in printed if "already" in line] == already_there(results, 1, 2)
    shutil.rmtree(runs / "2-3")
    assert repeated() == ["run", "run", "compare"]
    write_run(runs / "2-3", "partition.stages=8", "seed=3", dataset="austen")
    keep_results(SOAP, runs, results)
    made = json.loads((results / "made.json").read_text())
    (results / "made.json").write_text(json.dumps(made | {"command": "pipetrain run --multirun experiment=other"}))
    assert measured() == ["run", "run", "compare"]


def test_runs_of_other_settings_are_moved_away(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(reproduce, "carried_out", lambda _words: ExitCode.FAILED)
    runs = LENET5.runs(tmp_path / "runs")
    for _ in range(2):
        reproduced(tmp_path, LENET5.experiment)
        (runs / "0_seed=0").mkdir(exist_ok=True)
    assert not runs.with_name("small-earlier").exists()
    monkeypatch.setattr(ReproductionTarget, "settings", property(lambda _: ["train.epochs=7"]))
    reproduced(tmp_path, LENET5.experiment)
    aside = runs.with_name("small-earlier")
    assert str(aside) in capsys.readouterr().out
    assert (aside / "0_seed=0").is_dir()
    assert not (runs / "0_seed=0").exists()


def test_no_round_keeps_runs_of_other_settings(tmp_path, monkeypatch):
    settings, ran = [], []

    def train(words):
        if "compare" not in words:
            folder = folder_of(words)
            ran.append(folder.name)
            write_run(folder / "0", f"partition.stages={folder.name[-1]}", *settings[:1], dataset="austen")
        return ExitCode.COMPLETED

    parts = (["partition.stages=1"], ["partition.stages=2"], ["compare"])
    monkeypatch.setattr(ReproductionTarget, "rounds", rounds_of(*parts))
    monkeypatch.setattr(ReproductionTarget, "settings", property(lambda _: list(settings)))
    monkeypatch.setattr(reproduce, "carried_out", train)
    for rate in (0.01, 0.02):
        settings[:] = [f"optimizer.lr={rate}", "seed=0"]
        assert reproduced(tmp_path, SOAP.experiment) == 0
    rows = rows_of(SOAP.results(tmp_path / "out"))
    assert ran == ["round-1", "round-2"] * 2
    assert [(row["partition.stages"], row["optimizer.lr"]) for row in rows] == [("1", "0.02"), ("2", "0.02")]


def test_runs_of_a_round_are_moved_out_of_the_folder_that_is_kept(tmp_path):
    one, other = (SweepRound(SOAP, 1, words) for words in (["seed=1"], ["seed=2"]))
    first = one.runs(tmp_path)
    assert len(SOAP.rounds) > 1
    assert reproduce._set_aside(one, tmp_path) is None
    (first / "0_seed=1").mkdir()
    with locked(first):
        assert reproduce._set_aside(other, tmp_path) is None
    aside = reproduce._set_aside(other, tmp_path)
    assert aside == SOAP.runs(tmp_path).with_name("small-round-1-earlier")
    assert (aside / "0_seed=1").is_dir()


def test_all_runs_that_are_kept_stay_if_a_repetition_is_broken_off(tmp_path, monkeypatch, capsys):
    results, made = LENET5.results(tmp_path / "out"), tmp_path / "made"
    for seed in range(3):
        write_run(made / str(seed), "method=sequential", f"seed={seed}")
    keep_results(LENET5, made, results)
    before = (results / "runs.csv").read_text()
    monkeypatch.setattr(reproduce, "has_every_run", lambda *_: True)
    monkeypatch.setattr(reproduce, "carried_out", lambda _words: ExitCode.INTERRUPTED)
    write_run(LENET5.runs(tmp_path / "runs") / "0", "method=sequential", "seed=0")
    reproduced(tmp_path, LENET5.experiment)
    assert (results / "runs.csv").read_text() == before
    assert "stays as it is" in capsys.readouterr().out


@pytest.mark.slow
def test_rounds_that_compare_are_kept_and_not_repeated(tmp_path, monkeypatch, capfd):
    tiny = ["model.layers=1", "model.width=16", "model.heads=2", "dataset=austen", "dataset.tokens=characters"]
    tiny += ["dataset.positions=8", "dataset.vocabulary_size=null", "dataset.limit=64", "train.batch_size=8"]
    tiny += ["train.max_steps=null", "lr_schedule.warmup=1", "optimizer.lr=0.01", "seed=1,2,3"]
    parts = [["compare", f"partition.stages={D}", "--seeds", "2", "--tuning-seeds", "1"] for D in (1, 2)]
    monkeypatch.setattr(ReproductionTarget, "settings", property(lambda _: tiny))
    monkeypatch.setattr(ReproductionTarget, "rounds", rounds_of(*parts))
    behind_python_m_pipetrain = 3
    monkeypatch.setattr(reproduce, "carried_out", lambda words: cli.carry_out(words[behind_python_m_pipetrain:]))
    assert reproduced(tmp_path, SOAP.experiment) == 0
    results = SOAP.results(tmp_path / "out")
    rows = [row for _, found in compared_runs(SOAP, results) for row in found]
    assert [(row["partition.stages"], row["seed"]) for row in rows] == [("1", "0"), ("1", "1"), ("2", "0"), ("2", "1")]
    assert all(row["loss"] and row["loss_steps"] for row in rows[:2])
    first, second = (json.loads((results / f"round-{number}" / "made.json").read_text()) for number in (1, 2))
    assert first["targets"] == second["targets"]
    assert first["command"].startswith(f"pipetrain compare {PRESETS} experiment=slowdown/soap model.layers=1 ")
    assert "seed=" not in first["command"]
    assert f"lr={rows[-1]['optimizer.lr']} |" in (results / "round-2" / "comparison.md").read_text()
    shutil.rmtree(tmp_path / "runs")
    capfd.readouterr()
    assert reproduced(tmp_path, SOAP.experiment) == 0
    assert capfd.readouterr().out.splitlines() == already_there(results, 1, 2)
    assert [row for _, found in compared_runs(SOAP, results) for row in found] == rows


@pytest.mark.slow
def test_second_call_trains_nothing_and_keeps_numbers(tmp_path, monkeypatch):
    tiny = ["dataset=fashion_mnist_mini", "dataset.limit=64", "train.batch_size=16", "train.epochs=1", "seed=0,1"]
    monkeypatch.setattr(ReproductionTarget, "settings", property(lambda _: tiny))
    folder = LENET5.results(tmp_path / "out")
    kept = []
    for _ in range(2):
        assert reproduced(tmp_path, LENET5.experiment) == 0
        kept.append([(row["seed"], row["status"], row["loss"]) for row in rows_of(folder)])
    assert [row[:2] for row in kept[0]] == [("0", "completed"), ("1", "completed")]
    assert kept[0] == kept[1]
    made = json.loads((folder / "made.json").read_text())
    assert made["seeds"] == [0, 1]
    assert made["command"].startswith(f"pipetrain run {PRESETS} --multirun experiment={LENET5.experiment}")
    assert made["made_with"]["torch_version"]
    assert {path.name for path in folder.iterdir()} == {"runs.csv", "curves.json", "made.json"}
