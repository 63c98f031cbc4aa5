"""`pipetrain compare` as a user runs it."""

import csv
import json

import pytest
from support import cli as command

from pipetrain import cli

SMALL = (
    "model=lenet5", "method=gpipe,pipedream", "dataset.limit=96", "train.batch_size=32", "train.epochs=2",
    "train.microbatches=2", "device=cpu", "planner.bandwidth=false", "topology.gigabytes_per_s=[1.25]",
)  # fmt: skip


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("--seeds 0", "--seeds=0: "),
        ("--minutes 0", "--minutes 0: "),
        ("--target top1", "--target top1: "),
        ("--tune optimizer.lr", "--tune optimizer.lr: "),
        ("partition.stages=99", "partition.stages=99"),
        pytest.param("--target bleu=3", "--target bleu=3: no metric bleu", marks=pytest.mark.slow),
        pytest.param("--baseline stale", "--baseline stale: ", marks=pytest.mark.slow),
    ],
)
def test_wrong_words_fail_before_anything_is_written(tmp_path, monkeypatch, capsys, words, named):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "comparison.md").write_text("kept")
    assert cli.carry_out(["compare", *SMALL, *words.split(), "-o", "there"]) == 2
    assert capsys.readouterr().err.splitlines()[-1].startswith(f"pipetrain: error: {named}")
    assert [each.name for each in tmp_path.rglob("*")] == ["there", "comparison.md"]


@pytest.mark.slow
def test_time_that_is_over_starts_no_run_and_all_is_said_before(tmp_path):
    done = command.pipetrain_here("compare", *SMALL, "--minutes", "0.001", "-o", "out", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("tuning: 0 runs\nNo run of gpipe, the baseline, has completed.")
    runs, took, *later = done.stderr.splitlines()
    assert runs.startswith("2 configurations, at least 22 runs of 6 steps, ")
    assert "--minutes 0.001 ends it" in took
    assert later == ["predicting configuration 1 of 2", "predicting configuration 2 of 2"]
    assert not (tmp_path / "out" / "runs").exists()


@pytest.mark.slow
def test_comparison_is_made_and_continued_with_another_method(tmp_path):
    shared = (*SMALL[2:], "--tune", "optimizer.lr=0.05,1e+30", "--seeds", "2", "--tuning-seeds", "1", "-o", "out")
    done = command.pipetrain_here("compare", *SMALL[:2], *shared, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[:2] == ["tuning: 4 runs, 2 diverged", "seeds: 4 runs"]

    out = tmp_path / "out"
    found = json.loads((out / "comparison.json").read_text())
    assert {group["name"] for group in found["groups"]} == {"gpipe lr=0.05", "pipedream lr=0.05"}
    assert found["heads"][0].split(" is the fastest")[0] == found["groups"][0]["name"]
    runs = list(csv.DictReader((out / "runs.csv").open()))
    assert [run["purpose"] for run in runs].count("reported") == 4
    diverged = {(run["purpose"], run["tuned"]) for run in runs if run["status"] == "diverged"}
    assert diverged == {("tuning", "optimizer.lr=1e+30")}

    times = {path: path.stat().st_mtime_ns for path in out.glob("runs/*/summary.json")}
    assert len(times) == 8
    more = command.pipetrain_here("compare", SMALL[0], "method=naive_async,gpipe", *shared, cwd=tmp_path)
    assert more.returncode == 0, more.stderr
    assert {path: path.stat().st_mtime_ns for path in times} == times
    found = json.loads((out / "comparison.json").read_text())
    assert {group["name"] for group in found["groups"]} == {"gpipe lr=0.05", "naive_async lr=0.05"}
