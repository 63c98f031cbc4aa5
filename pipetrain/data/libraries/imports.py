"""Imports of optional packages."""

import importlib.util

from pipetrain.engine.errors import ConfigError


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
