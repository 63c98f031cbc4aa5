"""Imports of thousands of modules, which the garbage collector would search again and again: a sixth of their time."""

import contextlib
import gc
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def gc_paused(library: str) -> Iterator[None]:
    """Around imports, of which `library` is the first. The collector does not run, and leaves what they brought alone.

    Nothing happens where it is imported already: what an earlier run of a sweep has left is to be collected.
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
