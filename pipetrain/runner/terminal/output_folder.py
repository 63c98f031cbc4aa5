"""Checks that a folder can be written to, before the work whose results go there."""

import tempfile
from pathlib import Path

from pipetrain.engine.errors import ConfigError
from pipetrain.engine.failure import described


def check_writable(setting: str, folder: Path) -> None:
    """Raises a ConfigError, which begins with `setting`, if no file can be made in a folder or its nearest parent."""
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"{setting}: exists and is not a directory")
    nearest = next(each for each in (folder, *folder.resolve().parents) if each.exists())
    try:
        tempfile.TemporaryFile(dir=nearest).close()
    except OSError as error:
        raise ConfigError(f"{setting}: no file can be written to {nearest}: {error.strerror}") from error


def check_new_file(setting: str, path: Path, example: str, *, force: bool) -> None:
    """Raises a ConfigError if a file cannot be made in its folder, or exists and `force` does not replace it."""
    if not path.resolve().parent.is_dir():
        raise ConfigError(f"{setting}: the folder {path.resolve().parent} does not exist")
    if path.is_dir():
        raise ConfigError(f"{setting}: is a folder; name a file in it, such as {path / example}")
    if path.exists() and not path.is_file():
        raise ConfigError(f"{setting}: is not a regular file")
    if path.exists() and not force:
        raise ConfigError(f"{setting}: exists; --force replaces it")
    check_writable(setting, path.parent)


def directory_error(error: BaseException | None) -> ConfigError | None:
    """The error to show if the system refused to make a run's directory; None for other errors and their causes."""
    while error is not None and not isinstance(error, OSError):
        error = error.__cause__ or error.__context__
    if error is None:
        return None
    return ConfigError(f"{described(error)}; choose another folder by hydra.run.dir or, for a sweep, hydra.sweep.dir")
