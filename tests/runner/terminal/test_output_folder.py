"""Folders that can or cannot be written to."""

import pytest
from support.refusals import assert_refused

from pipetrain.cli import carry_out
from pipetrain.engine.errors import ExitCode
from pipetrain.runner.terminal.output_folder import check_writable


def test_folder_that_can_be_made_is_accepted_and_not_made(tmp_path):
    check_writable("-o x", tmp_path / "some" / "folder")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["file/folder", "file"])
def test_file_in_the_place_of_the_folder_is_refused(tmp_path, name):
    (tmp_path / "file").touch()
    assert_refused(r"^-o x: ", check_writable, "-o x", tmp_path / name)


@pytest.mark.parametrize("words", [["timeline", "method=gpipe"], ["report", "runs", "."]])
def test_unwritable_output_is_refused_before_the_work(tmp_path, capsys, words):
    (tmp_path / "file").touch()
    assert carry_out([*words, "-o", str(tmp_path / "file" / "folder" / "x")]) is ExitCode.WRONG_USAGE
    out, error = capsys.readouterr()
    assert (out, error.count("\n")) == ("", 1)
    assert "file: Not a directory" in error or "there is no folder" in error
