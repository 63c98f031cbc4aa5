"""What every test leaves as it was."""

import logging

import pytest


@pytest.fixture(autouse=True)
def _root_logger_unchanged():
    """Hydra gives the root logger a file of the run directory, which outlives a command carried out in this process."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers, root.level = handlers, level
