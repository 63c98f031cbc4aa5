"""What monitors watch: a store, a run directory and a clock."""

import pytest
from torch.distributed import HashStore

from pipetrain.runner.launch import monitor
from pipetrain.runner.tracking.run_directory import RunDirectory


class Clock:
    """A clock that stands still; counts how often it is looked at."""

    def __init__(self):
        self.seconds, self.looks = 0.0, 0

    def look(self):
        self.looks += 1
        return self.seconds


@pytest.fixture
def clock(monkeypatch):
    """The clock of monitors that are made during a test."""
    made = Clock()
    monkeypatch.setattr(monitor, "SuspendAwareClock", lambda: made)
    return made


@pytest.fixture
def store():
    return HashStore()


@pytest.fixture
def run(tmp_path):
    return RunDirectory(tmp_path)
