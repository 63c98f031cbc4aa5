"""The runs of a sweep, put together by configuration."""

import json

import pytest

from pipetrain.errors import ConfigError
from pipetrain.report.sweep.groups import collect


def write(folder, overrides, top1=50.0, status="completed"):
    (folder / ".hydra").mkdir(parents=True)
    (folder / ".hydra" / "overrides.yaml").write_text("".join(f"- {word}\n" for word in overrides))
    stages = [{"forward_staleness": [1, 2], "weight_bytes_peak": 800, "parameters": 100},
              {"forward_staleness": [], "weight_bytes_peak": 400, "parameters": 100}]  # fmt: skip
    values = {"final": {"top1": top1}, "best": {"top1": top1 + 5}}
    (folder / "summary.json").write_text(
        json.dumps({"status": status, "method": "gpipe", "per_stage": stages, **values})
    )


def test_groups_are_called_by_what_sets_them_apart(tmp_path):
    write(tmp_path / "0", ["method=gpipe", "model=lenet5", "optimizer.lr=0.1", "seed=0"])
    write(tmp_path / "1", ["method=gpipe", "model=lenet5", "optimizer.lr=0.2", "seed=0"])
    write(tmp_path / "2", ["method=pipedream", "model=lenet5", "optimizer.lr=0.1", "seed=1"])
    assert [group.label for group in collect([tmp_path])] == [
        "gpipe optimizer.lr=0.1", "gpipe optimizer.lr=0.2", "pipedream optimizer.lr=0.1",
    ]  # fmt: skip
    assert [group.label for group in collect([tmp_path / "0"])] == ["gpipe"]


def test_group_keeps_final_and_best_values_of_completed_runs_and_counts_the_diverged(tmp_path):
    write(tmp_path / "0", ["method=gpipe", "seed=0"], 50.0)
    write(tmp_path / "1", ["method=gpipe", "seed=1"], 60.0)
    write(tmp_path / "2", ["method=gpipe", "seed=2"], 1.0, status="diverged")
    (group,) = collect([tmp_path])
    assert (group.final, group.best) == ({"top1": [50.0, 60.0]}, {"top1": [55.0, 65.0]})
    assert (group.completed, group.diverged) == (2, 1)
    assert (group.staleness, group.copies) == ([2, 0], 1.5)


def test_folder_without_finished_runs_is_refused_by_name(tmp_path):
    with pytest.raises(ConfigError, match=f"{tmp_path}: no summary.json here"):
        collect([tmp_path])


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("summary.json", b'{"status": "comp'),
        ("summary.json", b"{}"),
        ("summary.json", b'{"status": "completed"}'),
        ("summary.json", b"\xff"),
        (".hydra/overrides.yaml", b"a: [1"),
        (".hydra/overrides.yaml", b"a: 1"),
    ],
)
def test_run_whose_files_are_damaged_is_a_row_of_its_own(tmp_path, name, text):
    write(tmp_path / "0", ["method=gpipe"])
    write(tmp_path / "1", ["method=pipedream"])
    write(tmp_path / "2", ["method=pipedream"])
    (tmp_path / "2" / name).write_bytes(text)
    groups = collect([tmp_path])
    assert [(group.label, group.completed, group.damaged) for group in groups] == [
        ("gpipe", 1, 0), ("pipedream", 1, 0), (str(tmp_path / "2"), 0, 1),
    ]  # fmt: skip
