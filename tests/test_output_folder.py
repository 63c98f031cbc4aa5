"""Folders that can or cannot be written to."""

import pytest

from pipetrain.errors import ConfigError
from pipetrain.output_folder import check_writable


def test_folder_that_can_be_made_is_accepted_and_not_made(tmp_path):
    check_writable("-o x", tmp_path / "some" / "folder")
    assert list(tmp_path.iterdir()) == []


def test_folder_below_a_file_is_refused_with_the_setting_and_the_reason(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"^-o x: no file can be written to .*file: Not a directory$"):
        check_writable("-o x", tmp_path / "file" / "folder")
