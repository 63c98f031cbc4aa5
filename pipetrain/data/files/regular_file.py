"""Files opened only if they are regular: under the name of another's file there may be a pipe, which is never read."""

import errno
import os
import stat
from io import TextIOWrapper
from pathlib import Path
from typing import BinaryIO


def descriptor_of(path: Path | str, flags: int = os.O_RDONLY) -> int:
    """The descriptor of an opened file, which may be a link unless `flags` has O_NOFOLLOW.

    Raises:
        OSError: it cannot be opened, or is a folder (EISDIR), a pipe or a device (ENXIO).
    """
    descriptor = os.open(path, flags | os.O_NONBLOCK, 0o666)
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return descriptor
    os.close(descriptor)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    raise OSError(errno.ENXIO, "it is not a regular file", str(path))


def opened(path: Path | str) -> BinaryIO:
    """The file, to read; raises as `descriptor_of`."""
    return os.fdopen(descriptor_of(path), "rb")


def text_of(path: Path | str) -> str:
    """The text of a UTF-8 file; raises as `descriptor_of`, and UnicodeDecodeError."""
    with TextIOWrapper(opened(path), encoding="utf-8") as file:
        return file.read()
