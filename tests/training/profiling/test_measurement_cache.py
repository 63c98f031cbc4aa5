import os

import pytest

from pipetrain.errors import ConfigError
from pipetrain.training.profiling.measurement_cache import Measurement, measure_in_subprocess


@pytest.fixture
def measurement(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return Measurement.of("profile", {"model": "lenet5", "shape": (4, 2)})


def test_what_was_measured_is_found_under_an_equal_key(measurement):
    assert measurement.load() is None
    measurement.store({"layers": [1.5]})
    again = Measurement.of("profile", {"shape": [4, 2], "model": "lenet5"})
    assert again.load() == {"layers": [1.5]}
    assert Measurement.of("profile", {"model": "lenet5", "shape": (4, 3)}).load() is None


@pytest.mark.parametrize("content", ["", "{", "[]", '{"key": {}, "measured": 1}', "null", "\0"])
def test_a_damaged_entry_is_none(measurement, content):
    measurement.store(1)
    measurement.path.write_text(content)
    assert measurement.load() is None


def test_nothing_is_kept_where_there_is_no_room(measurement, tmp_path):
    (tmp_path / "pipetrain").write_text("a file in the folder's place")
    measurement.store(1)
    assert measurement.load() is None


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
