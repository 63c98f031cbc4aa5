"""`pipetrain report runs`: the runs of a sweep side by side."""

import json

from support.cli import pipetrain

from pipetrain.report.sweep.groups import collect


def write_run(folder, method, seed, top1, status="completed", copies=1):
    (folder / ".hydra").mkdir(parents=True)
    (folder / ".hydra" / "overrides.yaml").write_text(f"- method={method}\n- seed={seed}\n- model=lenet5\n")
    stages = [{"forward_staleness": [1], "weight_bytes_peak": 400 * copies, "parameters": 100}]
    metric = {"top1": top1, "loss": 1.0}
    summary = {"status": status, "method": method, "final": metric, "best": metric, "per_stage": stages}
    (folder / "summary.json").write_text(json.dumps(summary))
    lines = [json.dumps({"step": 5 * e, "epoch": e, "eval": {"top1": top1 - 1 + e, "loss": 1.0}}) for e in (0, 1)]
    (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n")


def test_report_puts_runs_that_differ_in_the_seed_in_one_row(tmp_path):
    for seed, top1 in enumerate((80.0, 84.0)):
        write_run(tmp_path / f"a{seed}", "gpipe", seed, top1)
    write_run(tmp_path / "b0", "pipemare", 0, 70.0, copies=2)
    write_run(tmp_path / "b1", "pipemare", 1, float("nan"), status="diverged")
    result = pipetrain("report", "runs", str(tmp_path), "-o", str(tmp_path / "out" / "table"), cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    table = (tmp_path / "out" / "table.md").read_text().splitlines()
    assert [cell.strip() for cell in table[2].split("|")[1:-1]] == [
        "gpipe", "82.00 ± 2.83", "82.00 ± 2.83", "2", "1", "1.00",
    ]  # fmt: skip
    assert [cell.strip() for cell in table[3].split("|")[1:-1]] == [
        "pipemare", "70.00", "70.00", "1, 1 diverged", "1", "2.00",
    ]  # fmt: skip
    assert (tmp_path / "out" / "table.png").read_bytes().startswith(b"\x89PNG")
    gpipe = next(group for group in collect([tmp_path]) if group.label == "gpipe")
    assert gpipe.curves["top1"] == [[(1, 79.0), (2, 80.0)], [(1, 83.0), (2, 84.0)]]


def test_report_names_a_metric_that_no_run_has(tmp_path):
    write_run(tmp_path / "a", "gpipe", 0, 80.0)
    result = pipetrain("report", "runs", str(tmp_path), "--metric", "bleu", cwd=tmp_path)
    assert result.returncode == 2
    assert "loss, top1" in result.stderr
