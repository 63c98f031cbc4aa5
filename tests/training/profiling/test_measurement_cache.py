import os

import pytest

from pipetrain.errors import ConfigError
from pipetrain.training.profiling.measurement_cache import measure_in_subprocess, remembered

KEY = {"model": "lenet5", "shape": (4, 2)}


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "pipetrain"


def measured(value, key=KEY, cache="use"):
    return remembered("profile", key, cache, list, lambda: [value])


def test_what_was_measured_is_found_under_an_equal_key():
    assert measured(1.5) == ([1.5], False)
    assert measured(2.5, {"shape": [4, 2], "model": "lenet5"}) == ([1.5], True)
    assert measured(2.5, {**KEY, "shape": (4, 3)}) == ([2.5], False)


@pytest.mark.parametrize(("cache", "kept"), [("renew", 2.5), ("ignore", 1.5)])
def test_renewed_measurement_replaces_what_is_kept(cache, kept):
    measured(1.5)
    assert measured(2.5, cache=cache) == ([2.5], False)
    assert measured(3.5) == ([kept], True)


@pytest.mark.parametrize("content", ["", "{", "[]", '{"key": {}, "measured": [1]}', "null", "\0"])
def test_a_damaged_entry_is_measured_again(folder, content):
    measured(1)
    (path,) = folder.iterdir()
    path.write_text(content)
    assert measured(2) == ([2], False)


def test_ignored_cache_is_not_written(folder):
    measured(1.5, cache="ignore")
    assert not folder.exists()


def test_nothing_is_kept_where_there_is_no_room(folder):
    folder.write_text("a file in the folder's place")
    measured(1)
    assert measured(2) == ([2], False)


def pid_and(given):
    return [os.getpid(), given]


def refuse():
    raise ConfigError("train.batch_size=9: too many")


def test_what_a_process_measured_comes_back_from_it():
    pid, given = measure_in_subprocess(pid_and, {"a": 1.5})
    assert pid != os.getpid()
    assert given == {"a": 1.5}


def test_unmeasurable_configuration_is_refused_like_in_process():
    with pytest.raises(ConfigError, match=r"^train\.batch_size=9: too many$"):
        measure_in_subprocess(refuse)
