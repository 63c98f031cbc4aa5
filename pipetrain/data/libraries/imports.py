"""Imports of large and of optional packages."""

import contextlib
import gc
import importlib.util
import sys
from collections.abc import Iterator

from pipetrain.engine.errors import ConfigError


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


def require(use: str, packages: tuple[str, ...], extra: str, otherwise: str = "") -> None:
    """Checks that optional packages are installed, without importing them.

    Raises:
        ConfigError: a package that `use`, such as a setting, needs is missing; pipetrain's `extra` installs it, or
            the alternative `otherwise` works, such as "; or set eval.decode=false".
    """
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    if missing:
        absent = f"{' and '.join(missing)}, which {'is' if len(missing) == 1 else 'are'} not installed"
        raise ConfigError(f'{use} needs {absent}: pip install "pipetrain[{extra}]"{otherwise}')
