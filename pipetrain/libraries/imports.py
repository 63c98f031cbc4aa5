"""Imports of thousands of modules, which the garbage collector would search again and again: a sixth of their time."""

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """Around imports. The collector does not run, and leaves what was imported alone from then on."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if enabled:
            gc.enable()
