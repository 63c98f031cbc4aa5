"""The runs of a sweep, put together by configuration."""

import pytest
from support.stored_runs import write_run

from pipetrain.errors import ConfigError
from pipetrain.report.sweep.compared_run import ComparedRun
from pipetrain.report.sweep.groups import collect


def test_runs_that_differ_in_the_seed_are_one_group(tmp_path):
    write_run(tmp_path / "0", "method=gpipe", "optimizer.lr=0.1", "seed=0", top1=50.0)
    write_run(tmp_path / "1", "method=gpipe", "optimizer.lr=0.1", "seed=1", top1=60.0)
    write_run(tmp_path / "2", "method=gpipe", "optimizer.lr=0.2", "seed=1")
    first, second = collect([tmp_path], {})
    assert (first.name, second.name) == ("lr=0.1", "lr=0.2")
    assert (first.mean("top1"), first.mean("best_top1")) == (55.0, 60.0)
    assert first.deviation("top1") == pytest.approx(50**0.5)
    assert second.deviation("top1") is None
    assert first.curve("top1") == [(1, 54.0), (2, 55.0)]


def test_only_completed_runs_count_where_there_are_any(tmp_path):
    write_run(tmp_path / "0", "method=gpipe", "seed=0", top1=50.0)
    write_run(tmp_path / "1", "method=gpipe", "seed=1", top1=1.0, status="diverged", reason="the loss of step 3 is nan")
    write_run(tmp_path / "2", "method=pipedream", top1=30.0, status="interrupted")
    gpipe, pipedream = collect([tmp_path], {})
    assert gpipe.values("top1") == [50.0]
    assert gpipe.statuses == {"completed": 1, "diverged": 1}
    assert pipedream.values("top1") == [30.0]
    assert pipedream.statuses == {"interrupted": 1}


def test_folder_without_runs_is_refused_by_name(tmp_path):
    with pytest.raises(ConfigError, match=f"{tmp_path}: no runs here"):
        collect([tmp_path], {})


def test_damaged_runs_are_a_group_of_their_own_and_a_run_named_twice_counts_once(tmp_path):
    for name in ("0", "1"):
        write_run(tmp_path / name, "method=gpipe")
    (tmp_path / "1" / "summary.json").write_text("{")
    found = collect([tmp_path, tmp_path / "0"], {})
    assert [(group.name, dict(group.statuses)) for group in found] == [
        ("gpipe", {"completed": 1}), ("(damaged runs)", {"damaged": 1}),
    ]  # fmt: skip


def test_run_that_left_no_directory_is_a_group_too(tmp_path):
    write_run(tmp_path / "0", "method=gpipe")
    refused = ComparedRun(tmp_path / "1", "refused", settings={"method": "lwp"}, asked=["method"])
    assert [group.method for group in collect([tmp_path], {}, [refused])] == ["gpipe", "lwp"]
