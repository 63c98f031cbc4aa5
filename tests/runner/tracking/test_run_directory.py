"""The files of a run: set aside for a later one, taken back after a refusal."""

import os

import pytest
from support.refusals import assert_refused

from pipetrain.runner.tracking.files import write_whole
from pipetrain.runner.tracking.run_directory import RunDirectory, runs_in


def test_refused_run_takes_back_empty_folders_and_leaves_what_others_use(tmp_path):
    def refused(name):
        run = RunDirectory(tmp_path / name)
        run.path.mkdir(parents=True)
        return run

    refused("outputs/2026-01-02/03-04-05").remove_if_empty()
    assert list(tmp_path.iterdir()) == []
    run, other = refused("outputs/2026-01-02/03-04-05"), refused("outputs/2026-01-02/01-02-03")
    run.remove_if_empty()
    assert (run.path.exists(), other.path.exists()) == (False, True)
    named = refused("mine/run")
    named.remove_if_empty()
    assert named.path.parent.exists()


def test_earlier_run_is_set_aside_with_its_checkpoints(tmp_path):
    run = RunDirectory(tmp_path)
    assert run.archive_previous_run() is None
    run.checkpoint(3).mkdir(parents=True)
    write_whole(run.summary, "{}")
    (tmp_path / "notes.txt").write_text("mine")
    assert [each.path for each in runs_in(tmp_path)] == [run.path]
    aside = run.archive_previous_run()
    assert aside == tmp_path / "earlier-1"
    assert RunDirectory(aside).checkpoint(3).is_dir()
    assert (tmp_path / "notes.txt").exists()
    assert runs_in(tmp_path) == []
    assert [each.path for each in runs_in(aside)] == [aside]
    mine = RunDirectory(tmp_path / "earlier-lr=0.1")
    mine.path.mkdir()
    write_whole(mine.summary, "{}")
    assert [each.path for each in runs_in(tmp_path)] == [mine.path]


def test_record_of_hydra_is_no_run_whatever_it_is_called(tmp_path):
    run = RunDirectory(tmp_path / "run")
    for folder in (run.hydra, run.path / "cfg"):
        folder.mkdir(parents=True)
        for name in ("config.yaml", "hydra.yaml", "overrides.yaml"):
            (folder / name).write_text("{}")
    run.config.write_text("{}")
    assert [each.path for each in runs_in(tmp_path)] == [run.path]


def test_copies_of_trackers_are_no_runs(tmp_path):
    run, named = RunDirectory(tmp_path / "outputs" / "run"), RunDirectory(tmp_path / "outputs" / "wandb")
    for folder in ("mlruns/1/5f/artifacts", "wandb/run-1/files", "outputs/run", "outputs/wandb"):
        (tmp_path / folder).mkdir(parents=True)
        for name in ("config.yaml", "summary.json"):
            (tmp_path / folder / name).write_text("{}")
    assert [each.path for each in runs_in(tmp_path)] == [run.path, named.path]


@pytest.mark.parametrize("name", ["config.yaml", "metrics.jsonl", "summary.json", "plan.json"])
def test_earlier_run_without_checkpoint_is_set_aside_with_logs(tmp_path, name):
    run = RunDirectory(tmp_path)
    (tmp_path / name).write_text("{}")
    for folder in (run.tensorboard, run.logs, run.hydra, run.timeline):
        folder.mkdir()
    run.page.write_text("of the earlier run")
    aside = run.archive_previous_run()
    assert {path.name for path in aside.iterdir()} == {name, "tensorboard", "logs", ".hydra", "timeline", "report.html"}
    assert list(tmp_path.iterdir()) == [aside]


@pytest.mark.parametrize("folders", [["logs"], ["checkpoints", ".hydra"]])
def test_folder_that_holds_no_run_is_left_as_it_is(tmp_path, folders):
    for name in folders:
        (tmp_path / name).mkdir()
    assert RunDirectory(tmp_path).archive_previous_run() is None
    assert {path.name for path in tmp_path.iterdir()} == {*folders}


def test_empty_folder_where_a_disk_is_mounted_stays(tmp_path, monkeypatch):
    run = RunDirectory(tmp_path)
    run.checkpoints.mkdir()
    run.config.touch()
    monkeypatch.setattr(os.path, "ismount", lambda path: path == run.checkpoints)
    aside = run.archive_previous_run()
    assert ([path.name for path in aside.iterdir()], run.checkpoints.is_dir()) == (["config.yaml"], True)


def test_mounted_disk_with_files_is_not_set_aside(tmp_path, monkeypatch):
    run = RunDirectory(tmp_path)
    run.checkpoint(4).mkdir(parents=True)
    run.config.touch()
    monkeypatch.setattr(os.path, "ismount", lambda path: path == run.checkpoints)
    assert_refused(f"{run.checkpoints}: is a mount", run.archive_previous_run)
    assert {path.name for path in tmp_path.iterdir()} == {"checkpoints", "config.yaml"}


@pytest.mark.parametrize("name", [".hydra", "checkpoints", "logs"])
def test_file_where_a_run_needs_a_folder_is_refused(tmp_path, name):
    (tmp_path / name).touch()
    assert_refused(f"{name}: is a file, .* folder", lambda: RunDirectory(tmp_path).check_own())


@pytest.mark.parametrize("name", ["metrics.jsonl", "metrics.jsonl.partial", "config.yaml", "pipetrain.log"])
def test_folder_where_a_run_needs_a_file_is_refused(tmp_path, name):
    (tmp_path / name).mkdir()
    assert_refused(f"{name}: is a folder, .* file", lambda: RunDirectory(tmp_path).check_own())


def test_other_files_and_folders_of_a_run_directory_are_not_looked_at(tmp_path):
    (tmp_path / "mine.partial").mkdir()
    (tmp_path / "mine.log").mkdir()
    (tmp_path / "earlier-1").mkdir()
    RunDirectory(tmp_path).check_own()


def test_checkpoints_after_resumed_one_are_set_aside(tmp_path):
    run = RunDirectory(tmp_path)
    for step in (4, 8, 12):
        run.checkpoint(step).mkdir(parents=True)
    aside = RunDirectory(run.archive_checkpoints_after(run.checkpoint(4)))
    assert [path.name for path in run.checkpoints.iterdir()] == ["step-00000004"]
    assert sorted(aside.checkpoints.iterdir()) == [aside.checkpoint(8), aside.checkpoint(12)]
    assert run.archive_checkpoints_after(run.checkpoint(4)) is None


@pytest.mark.parametrize("content", [b"a: [1", b"- 1", b"\xff\x00", b"a: 1\n"])
def test_damaged_record_is_one_line_that_names_the_file(tmp_path, content):
    run = RunDirectory(tmp_path)
    run.hydra.mkdir()
    (run.hydra / "hydra.yaml").write_bytes(content)
    assert_refused(f"^{run.hydra / 'hydra.yaml'}: damaged: [^\n]*$", run.choices)
    if content != b"a: 1\n":
        run.config.write_bytes(content)
        assert_refused(f"^{run.config}: damaged: [^\n]*$", run.stored_config)


def test_records_of_another_resolve_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("SECRET", "told")
    run = RunDirectory(tmp_path)
    run.hydra.mkdir()
    (run.hydra / "hydra.yaml").write_text("hydra: {runtime: {choices: {model: '${oc.env:SECRET}'}}}")
    (run.hydra / "overrides.yaml").write_text("['seed=${oc.env:SECRET}']")
    assert run.choices() == {"model": "${oc.env:SECRET}"}
    assert run.overrides() == ["seed=${oc.env:SECRET}"]


def test_strange_files_among_notes_of_failures_are_left_alone(tmp_path):
    run = RunDirectory(tmp_path)
    run.logs.mkdir()
    for process in (12, 3):
        run.failure_note(process).write_text("{}")
        run.failure_traceback(process).write_text("Traceback")
    names = ("failure-processX.json", "failure-process1.json.bak", "failure-process.json")
    strange = [run.logs / name for name in names]
    for path in strange:
        path.write_text("mine")
    run.failure_note(7).mkdir()
    assert run.failed_processes() == [3, 12]
    run.forget_failures()
    assert run.failed_processes() == []
    assert sorted(run.logs.iterdir()) == sorted([*strange, run.failure_note(7)])
