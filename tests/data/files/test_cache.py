"""Folders of the cache."""

import pytest

from pipetrain.data.files.cache import private_folder


def test_private_folder_is_closed_to_others_even_if_it_was_open(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "pipetrain" / "old").mkdir(parents=True, mode=0o777)
    for name in ("new", "old"):
        folder = private_folder(name)
        assert folder == tmp_path / "pipetrain" / name
        assert folder.stat().st_mode & 0o777 == 0o700


def test_link_is_no_private_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "pipetrain").mkdir()
    (tmp_path / "pipetrain" / "code").symlink_to(tmp_path)
    with pytest.raises(PermissionError, match="it is a link, or another user's"):
        private_folder("code")
