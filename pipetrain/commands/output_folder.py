"""Whether a folder can be written to, found before the work whose results go there."""

import tempfile
from pathlib import Path

from pipetrain.errors import ConfigError


def check_writable(setting: str, folder: Path) -> None:
    """Checks that files can be made in `folder`, or in the nearest one above it that exists; leaves nothing there.

    Args:
        setting: that names the folder, such as `-o figures`.
        folder: where the files will be.

    Raises:
        ConfigError: they cannot.
    """
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"{setting}: exists and is not a directory")
    nearest = next(each for each in (folder, *folder.resolve().parents) if each.exists())
    try:
        tempfile.TemporaryFile(dir=nearest).close()
    except OSError as error:
        raise ConfigError(f"{setting}: no file can be written to {nearest}: {error.strerror}") from error
