"""`pipetrain report runs`: the runs of a sweep side by side."""

import json

from pipetrain import cli
from pipetrain.report.sweep.groups import collect
from pipetrain.report.sweep.table import report


def write_run(folder, method, seed, top1, status="completed", copies=1):
    (folder / ".hydra").mkdir(parents=True)
    (folder / ".hydra" / "overrides.yaml").write_text(f"- method={method}\n- seed={seed}\n- model=lenet5\n")
    stages = [{"forward_staleness": [1], "weight_bytes_peak": 400 * copies, "parameters": 100}]
    final, best = {"top1": top1, "loss": 1.0}, {"top1": top1 + 5.0, "loss": 0.5}
    summary = {"status": status, "method": method, "final": final, "best": best, "per_stage": stages}
    (folder / "summary.json").write_text(json.dumps(summary))
    records = [{"kind": "eval", "step": 5 * e, "epoch": e, "eval_top1": top1 - 2 + e, "eval_loss": 1.0} for e in (1, 2)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))


def test_report_puts_runs_that_differ_in_the_seed_in_one_row(tmp_path):
    for seed, top1 in enumerate((80.0, 84.0)):
        write_run(tmp_path / f"a{seed}", "gpipe", seed, top1)
    write_run(tmp_path / "b0", "pipemare", 0, 70.0, copies=2)
    write_run(tmp_path / "b1", "pipemare", 1, float("nan"), status="diverged")
    assert cli.carry_out(["report", "runs", str(tmp_path), "-o", str(tmp_path / "out" / "table")]) == 0
    table = (tmp_path / "out" / "table.md").read_text().splitlines()
    assert [cell.strip() for cell in table[2].split("|")[1:-1]] == [
        "gpipe", "82.00 ± 2.83", "87.00 ± 2.83", "2", "1", "1.00",
    ]  # fmt: skip
    assert [cell.strip() for cell in table[3].split("|")[1:-1]] == [
        "pipemare", "70.00", "75.00", "1, 1 diverged", "1", "2.00",
    ]  # fmt: skip
    assert (tmp_path / "out" / "table.png").read_bytes().startswith(b"\x89PNG")
    gpipe = next(group for group in collect([tmp_path]) if group.label == "gpipe")
    assert gpipe.curves["top1"] == [[(1, 79.0), (2, 80.0)], [(1, 83.0), (2, 84.0)]]


def test_report_names_a_metric_that_no_run_has(tmp_path, capsys):
    write_run(tmp_path / "a", "gpipe", 0, 80.0)
    assert cli.carry_out(["report", "runs", str(tmp_path), "--metric", "bleu"]) == 2
    assert "loss, top1" in capsys.readouterr().err


def test_report_sorts_by_the_final_value_whether_more_or_less_is_better(tmp_path, capsys):
    for name, top1, loss in (("gpipe", 80.0, 2.0), ("pipedream", 90.0, 3.0)):
        write_run(tmp_path / name, name, 0, top1)
        summary = json.loads((tmp_path / name / "summary.json").read_text())
        # by their best values the runs stand the other way round
        changed = {"final": {"top1": top1, "loss": loss}, "best": {"top1": 100 - top1, "loss": 4 - loss}}
        (tmp_path / name / "summary.json").write_text(json.dumps({**summary, **changed}))
    for metric, first in (("top1", "pipedream"), ("loss", "gpipe")):
        report([tmp_path], metric, None)
        assert capsys.readouterr().out.splitlines()[2].split("|")[1].strip() == first
