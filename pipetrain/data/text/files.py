"""Files of text, plain or gzipped, read whole."""

import gzip
import zlib
from pathlib import Path

from pipetrain.errors import ConfigError

MOST_BYTES = 10**9
"""Of a text, which is read whole and then cut into tokens."""
_CHUNK = 2**24
"""Bytes that are read at once."""


def read_text(path: Path, setting: str, remedy: str) -> str:
    """The text of a UTF-8 file, unpacked if its name ends in .gz; every line ends in a newline character alone.

    Args:
        path: of the file.
        setting: what names it, for errors, such as `dataset.path=novel.txt`.
        remedy: how to get it.

    Raises:
        ConfigError: there is no such file, it cannot be read or unpacked, has more than `MOST_BYTES`, is no UTF-8, or
            holds no text.
    """
    data = _read(path, setting, remedy)
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{setting}: {path} is not UTF-8: byte {error.start} is {data[error.start]:#04x}; convert it, for instance "
            f"with iconv -t utf-8"
        ) from error
    if not text.strip():
        raise ConfigError(f"{setting}: {path} holds no text")
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _read(path: Path, setting: str, remedy: str) -> bytes:
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as stream:
            data = bytearray()
            while len(data) <= MOST_BYTES and (chunk := stream.read(_CHUNK)):
                data += chunk
    except FileNotFoundError as error:
        raise ConfigError(f"{setting}: there is no file {path.absolute()}; {remedy}") from error
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ConfigError(f"{setting}: {path} is no whole gzip archive ({error}); fetch it again") from error
    except OSError as error:
        raise ConfigError(f"{setting}: {path} cannot be read: {error.strerror}") from error
    if len(data) > MOST_BYTES:
        unpacked = "unpacks to" if path.suffix == ".gz" else "has"
        raise ConfigError(
            f"{setting}: {path} {unpacked} more than {MOST_BYTES // 10**6:,} MB, too much for a text that is read "
            "whole; use a part of it"
        )
    return bytes(data)


def split_text(text: str, share: float) -> tuple[str, str]:
    """The text up to a line's end, and the last `share` of it or a little less.

    Where no line begins behind the cut, as in a text of a single line, it goes through the line.
    """
    cut = int(len(text) * (1 - share))
    end = text.find("\n", cut, len(text) - 1)
    cut = cut if end < 0 else end + 1
    return text[:cut], text[cut:]
