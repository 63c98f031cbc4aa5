import os

import pytest

from pipetrain.errors import ConfigError
from pipetrain.run.measuring_process import measured_apart


def pid_and(given):
    return [os.getpid(), given]


def refuse():
    raise ConfigError("train.batch_size=9: too many")


def test_what_a_process_measured_comes_back_from_it():
    pid, given = measured_apart(pid_and, {"a": 1.5})
    assert pid != os.getpid()
    assert given == {"a": 1.5}


def test_configuration_that_cannot_be_measured_is_refused_as_in_this_process():
    with pytest.raises(ConfigError, match=r"^train\.batch_size=9: too many$"):
        measured_apart(refuse)
