"""The garbage collector stays out of imports."""

import gc

import pytest

from pipetrain.data.libraries.imports import gc_paused


@pytest.fixture(autouse=True)
def _collector_as_it_was():
    enabled = gc.isenabled()
    yield
    gc.unfreeze()
    (gc.enable if enabled else gc.disable)()


def test_collector_is_paused_during_imports():
    gc.unfreeze()
    with gc_paused("no_such_library"):
        assert not gc.isenabled()
        assert gc.get_freeze_count() == 0
    assert gc.isenabled()
    assert gc.get_freeze_count() > 10_000


def test_collector_runs_again_after_a_failed_import():
    with pytest.raises(ImportError), gc_paused("no_such_library"):
        raise ImportError("no such module")
    assert gc.isenabled()


def test_collector_that_was_off_stays_off():
    gc.disable()
    with gc_paused("no_such_library"):
        pass
    assert not gc.isenabled()


def test_collector_frees_earlier_run_at_library_import():
    gc.unfreeze()
    with gc_paused("pytest"):
        assert gc.isenabled()
    assert gc.get_freeze_count() == 0
