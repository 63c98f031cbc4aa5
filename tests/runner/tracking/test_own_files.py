"""Nothing is written through a link, or a pipe, that a run directory of somebody else's brings."""

import os
import shutil

import pytest
from support.one_run import carried_out
from support.refusals import assert_refused

from pipetrain.engine.errors import ExitCode
from pipetrain.runner.tracking import run_lock
from pipetrain.runner.tracking.files import write_whole
from pipetrain.runner.tracking.run_directory import RunDirectory, check_member, check_own

PRECIOUS = "not to be overwritten"
SHORT = ("train.epochs=1", "trace=true", "checkpoint.every_epochs=1", "log.to=[tensorboard]")


@pytest.fixture(scope="module")
def left(tmp_path_factory):
    """What a run leaves behind, and what it has meanwhile."""
    run = tmp_path_factory.mktemp("left") / "run"
    assert carried_out(run, *SHORT) is ExitCode.COMPLETED
    directory = RunDirectory(run)
    reported = directory.page, directory.timeline / "timeline.svg"
    logs = directory.log, directory.logs / "launcher.log", directory.failure_note(0)
    for path in (directory.tracker_ids, *reported, *logs):
        path.parent.mkdir(exist_ok=True)
        path.touch()
    (run / run_lock.NAME).touch()
    return run


def names(left):
    """Each file and folder that a run writes, one below another, and what it writes beside them before a rename."""
    partial = [left / f"{path.name}.partial" for path in left.iterdir() if path.is_file()]
    return [path.relative_to(left) for path in (*left.rglob("*"), *partial)]


@pytest.mark.slow
def test_every_file_of_a_run_is_known_to_the_run_directory(left):
    known = {path.name for path in RunDirectory(left)._of_one_run}
    assert {path.name for path in left.iterdir()} == {*known, run_lock.NAME}


@pytest.mark.slow
@pytest.mark.parametrize("resume", ["auto", "null"])
def test_no_file_or_folder_of_a_run_is_written_through_a_link(left, tmp_path, capsys, resume):
    precious, elsewhere = tmp_path / "precious", tmp_path / "elsewhere"
    precious.write_text(PRECIOUS)
    elsewhere.mkdir()
    for number, name in enumerate(names(left)):
        run = tmp_path / str(number)
        shutil.copytree(left, run)
        path = run / name
        goal = elsewhere if path.is_dir() else precious
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        path.symlink_to(goal)
        assert carried_out(run, *SHORT, "train.epochs=2", f"resume={resume}") is ExitCode.WRONG_USAGE, name
        error = capsys.readouterr().err
        assert error.startswith(f"pipetrain: error: {path}: is "), error
        assert error.count("\n") == 1
        assert precious.read_text() == PRECIOUS, name
        assert list(elsewhere.iterdir()) == [], name
        shutil.rmtree(run)


def test_directory_of_a_run_may_itself_be_a_link(left, tmp_path):
    shutil.copytree(left, tmp_path / "real")
    (tmp_path / "run").symlink_to("real")
    assert carried_out(tmp_path / "run", *SHORT, "train.epochs=2", "resume=auto") is ExitCode.COMPLETED


def test_link_not_written_by_run_is_ignored(left, tmp_path):
    shutil.copytree(left, tmp_path / "run")
    (tmp_path / "run" / "data").symlink_to(tmp_path)
    RunDirectory(tmp_path / "run").check_own()


@pytest.mark.parametrize("name", [".lock", "pipetrain.log", "tensorboard"])
def test_pipe_in_place_of_file_is_refused_without_waiting(tmp_path, capsys, name):
    os.mkfifo(tmp_path / name)
    assert carried_out(tmp_path) is ExitCode.WRONG_USAGE
    assert str(tmp_path / name) in capsys.readouterr().err


def test_foreign_partial_file_is_replaced_not_written(tmp_path):
    precious = tmp_path / "precious"
    precious.write_text(PRECIOUS)
    (tmp_path / "file.partial").symlink_to(precious)
    write_whole(tmp_path / "file", "new")
    assert (precious.read_text(), (tmp_path / "file").read_text()) == (PRECIOUS, "new")


@pytest.mark.parametrize("link", ["0", "a", "a/0"])
def test_run_of_a_sweep_that_is_elsewhere_is_refused(tmp_path, link):
    elsewhere, sweep = tmp_path / "elsewhere", tmp_path / "sweep"
    (elsewhere / "0").mkdir(parents=True)
    run = sweep / "a" / "0" if link.startswith("a") else sweep / "0"
    (sweep / link).parent.mkdir(parents=True)
    (sweep / link).symlink_to(elsewhere)
    (tmp_path / "linked").symlink_to(sweep)  # the sweep's own folder may be one
    for folder in (sweep, tmp_path / "linked"):
        assert_refused(f"{folder / link}: is a symbolic link", check_member, folder / run.relative_to(sweep), folder)
    check_member(tmp_path / "linked" / "1", tmp_path / "linked")


def test_folder_is_checked_with_all_in_it(tmp_path):
    check_own(tmp_path / "none")
    (tmp_path / "a" / "b").mkdir(parents=True)
    check_own(tmp_path / "a")
    (tmp_path / "a" / "b" / "c").symlink_to("nowhere")
    assert_refused("a/b/c: is a symbolic link", check_own, tmp_path / "a")
