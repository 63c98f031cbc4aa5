"""The verdicts of the runs at the paper's size, as far as all have come."""

import pytest
from support.stored_runs import write_run

from papers.at_size import CLAIMS, read_runs, report, verdicts
from papers.paper import read_tables
from papers.presets import FOLDER
from pipetrain.engine.errors import ConfigError

MEANS = {"baseline": 80.0, "early": 79.8, "late": 70.0, "hybrid": 79.9}


def write(folder, switch=5, rate=0.01):
    for name, mean in MEANS.items():
        hybrid = [f"phases.0.steps={switch}"] * (name == "hybrid")
        for seed, more in enumerate((-0.1, 0.0, 0.15)):
            given = ("train.epochs=256", f"optimizer.lr={rate if name == 'early' else 0.01}", f"seed={seed}", *hybrid)
            run, top1 = folder / f"{name}-{seed}", mean + more * (1 + len(name) % 3)
            write_run(run, *given, top1=top1)
            records = (run / "metrics.jsonl").read_text()
            (run / "metrics.jsonl").write_text(records.replace('"eval_loss": 1.0', f'"eval_loss": {100 - top1}'))


def test_claims_are_judged_at_the_epochs_of_all_runs(tmp_path):
    write(tmp_path)
    runs = read_runs(tmp_path)
    assert (runs.epochs, runs.planned) == (2, 256)
    assert {group.name: round(group.mean("top1")) for group in runs.groups} == {
        "baseline": 80, "early": 80, "hybrid": 80, "late": 70,
    }  # fmt: skip
    assert {name: found.verdict for name, found in verdicts(runs).items()} == dict.fromkeys(
        CLAIMS, "seen at the paper's network and data, 2 of 256 epochs"
    )
    text = "\n".join(report(tmp_path))
    assert "full" not in text
    assert "seen: resnet20, final top1: early" in text


def test_run_that_is_behind_counts_for_all(tmp_path):
    write(tmp_path)
    behind = tmp_path / "early-0" / "metrics.jsonl"
    first, *_ = behind.read_text().partition('{"kind": "epoch", "step": 10')
    behind.write_text(first)
    runs = read_runs(tmp_path)
    assert runs.epochs == 1
    assert {group.name: round(group.mean("top1")) for group in runs.groups} == {"baseline": 79, "early": 79, "late": 69}
    assert verdicts(runs).keys() == CLAIMS.keys() - {"hybrid_recovers"}
    assert list(report(tmp_path))[-1] == "hybrid_recovers: not tested, the hybrid still has stale weights"


def test_pipeline_at_another_rate_is_not_compared(tmp_path):
    write(tmp_path, rate=0.02)
    found = verdicts(read_runs(tmp_path))["early_stages_harmless"]
    assert found.verdict == "not tested here"
    assert "learning rate" in found.why[0]


def test_runs_without_an_evaluation_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="no runs"):
        read_runs(tmp_path)
    write(tmp_path)
    (tmp_path / "late-1" / "metrics.jsonl").write_text("")
    with pytest.raises(ConfigError, match="late-1: no evaluation yet"):
        read_runs(tmp_path)


def test_claims_are_the_papers():
    names = {row["name"] for row in read_tables(FOLDER.parents[1] / "results", "zhang")["claims"].rows}
    assert CLAIMS.keys() <= names
