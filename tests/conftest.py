"""What every test leaves as it was."""

import gc
import logging
import os
import signal

os.environ.setdefault("OMP_NUM_THREADS", "1")  # tensors are tiny, and several tests run at a time; before torch

import pytest
from hypothesis import settings

from pipetrain.engine.processes import ENDING

pytest.register_assert_rewrite("support")  # failed assertions there show their values, too
settings.register_profile("without deadline", deadline=None)  # a busy machine is no failure
settings.load_profile("without deadline")


def pytest_collection_finish():
    """Keeps the garbage collector off all modules and tests: a run ends with a collection."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="module")
def _earlier_objects_are_not_searched():
    """The same for what a file of tests has imported since then."""
    yield
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _root_logger_unchanged():
    """Hydra gives the root logger a file of the run directory, which outlives a command carried out in this process."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers, root.level = handlers, level


@pytest.fixture(autouse=True, scope="session")
def _cache_of_the_tests_alone(tmp_path_factory):
    """Vocabularies that tests train are none of the user's; commands carried out as processes find it, too."""
    os.environ["XDG_CACHE_HOME"] = str(tmp_path_factory.mktemp("cache"))


@pytest.fixture(autouse=True, scope="session")
def _secret_of_the_tests_alone():
    """Processes that tests start with ranks sign with it, and make no key in the home of the user."""
    os.environ["PIPETRAIN_SECRET"] = "of the tests"


@pytest.fixture(autouse=True, scope="session")
def _signals_are_heard():
    """A shell has its background jobs ignore SIGINT and SIGQUIT, nohup SIGHUP; processes inherit that."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.fixture
def main():
    """The command in this process, whose signal handlers it would keep."""
    # only here, as the tests of the engine do without the command
    from pipetrain import cli
    from pipetrain.runner.launch import signals

    before = {number: signal.getsignal(number) for number in ENDING}
    yield cli.main
    signals._of_command = None
    for number, handler in before.items():
        signal.signal(number, handler)
