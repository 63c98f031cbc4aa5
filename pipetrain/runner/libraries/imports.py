"""Imports of large packages without the garbage collector."""

import contextlib
import gc
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def gc_paused(library: str) -> Iterator[None]:
    """Keeps the garbage collector from running during imports, of which `library` is the first, and off their objects.

    It would search thousands of modules again and again, a sixth of the time. Does nothing if `library` is imported
    already: what an earlier run of a sweep has left is to be collected.
    """
    if library in sys.modules:
        yield
        return
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if enabled:
            gc.enable()
