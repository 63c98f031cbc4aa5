"""The runs that are kept of a sweep."""

import math
from dataclasses import replace

from support.stored_runs import write_run

from papers.kept_runs import read_groups, rows_in, write_runs
from pipetrain.reporting.sweep.comparison import collect, ranked
from pipetrain.reporting.sweep.sweep_files import as_json


def test_groups_are_read_as_they_were_written(tmp_path):
    for seed in (0, 1):
        write_run(tmp_path / f"a{seed}", "method=gpipe", f"seed={seed}", top1=80.0 + seed)
    write_run(tmp_path / "b", "method=lwp", status="failed", final={"top1": None})
    compared = ranked(collect([tmp_path], {}), None)
    groups = [replace(group, runs=[replace(run, started_at="") for run in group.runs]) for group in compared.groups]
    compared = compared._replace(groups=groups)
    (tmp_path / "kept").mkdir()
    write_runs(tmp_path / "kept", compared.groups)
    read = read_groups(tmp_path / "kept")
    assert [group.method for group in read] == [group.method for group in compared.groups]
    assert as_json(compared._replace(groups=read)) == as_json(compared)


def test_curves_have_five_digits_and_share_their_places(tmp_path):
    write_run(tmp_path / "runs" / "a", "method=gpipe", "seed=0", top1=100 / 3)
    write_run(tmp_path / "runs" / "b", "method=gpipe", "seed=1", top1=math.pi)
    compared = ranked(collect([tmp_path / "runs"], {}), None)
    files = write_runs(tmp_path, compared.groups)
    assert [path.name for path in files] == ["runs.csv", "curves.json"]
    (group,) = read_groups(tmp_path)
    assert sorted(run.curves["top1"][-1].value for run in group.runs) == [3.1416, 33.333]
    assert sorted(group.values("top1")) == [math.pi, 100 / 3]
    text = files[1].read_text()
    assert text.count('"top1":[0,') == 2
    assert [path.name for path in write_runs(tmp_path, compared.groups, whole=False)] == ["runs.csv"]
    (row, _) = rows_in(tmp_path / "runs.csv")
    assert {"loss", "top1", "steps", "status", "seed"} <= row.keys()
    assert not {"best_top1", "weight_bytes", "wall_s", "samples_per_second"} & row.keys()
