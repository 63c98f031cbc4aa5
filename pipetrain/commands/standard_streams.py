"""The standard streams of the command: readers may go away, streams may be closed, and warnings may be repeated."""

import errno
import os
import sys
import warnings
from io import TextIOWrapper
from pathlib import Path
from typing import Any, TextIO

from typing_extensions import override

_NO_READER = {errno.EPIPE, errno.EIO, errno.EBADF}
"""A pipe without a reader, a terminal that was hung up, a descriptor that was closed."""


class LenientStream(TextIOWrapper):
    """A stream whose reader may go away, as `head -1` does: further output is dropped, and nothing fails.

    Attributes:
        lost: the error that dropped output although it has a reader, as on a full disk, or None.
    """

    lost: OSError | None = None

    @override
    def write(self, text: str) -> int:
        try:
            return super().write(text)
        except OSError as error:
            self._drop(error)
            return len(text)

    @override
    def flush(self) -> None:
        try:
            super().flush()
        except OSError as error:
            self._drop(error)

    @override
    def close(self) -> None:
        """Leaves the stream open: user code that closes it must not end the run at the next line that is printed."""
        self.flush()

    def _drop(self, error: OSError) -> None:
        """Redirects this stream, with its buffer, to the null device."""
        if error.errno not in _NO_READER:
            self.lost = error
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self.fileno())
        os.close(nowhere)


def make_lenient() -> None:
    """Keeps the command working even if its terminal goes away."""
    _open_closed()
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if type(stream) is TextIOWrapper:
            options: dict[str, Any] = {
                option: getattr(stream, option) for option in ("encoding", "errors", "line_buffering", "write_through")
            }
            if options["errors"] in ("strict", "surrogateescape"):  # not every encoding has the ± of a table
                options["errors"] = "backslashreplace"
            lenient = LenientStream(stream.detach(), **options)
            setattr(sys, name, lenient)
            setattr(sys, f"__{name}__", lenient)  # which Python asks for the width of the terminal


def show_warnings_once() -> None:
    """Shows each warning once, unless the user has chosen with -W or PYTHONWARNINGS which ones are shown.

    Python itself forgets what it has shown whenever any code changes its filters, if only for a moment.
    """
    if sys.warnoptions:
        return
    show, shown = warnings.showwarning, set[tuple[str, type[Warning], str, int]]()

    def show_once(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        if (which := (str(message), category, filename, lineno)) not in shown:
            shown.add(which)
            show(message, category, filename, lineno, file, line)

    warnings.showwarning = show_once


def lost_output() -> str | None:
    """Message about output that could not be written, or None."""
    sys.stdout.flush()
    error = getattr(sys.stdout, "lost", None)
    return None if error is None else f"standard output: {error.strerror.lower()}; the rest of it is lost"


def _open_closed() -> None:
    """Opens closed descriptors (`1>&-`) to the null device: the next file would get that number, and all output."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free number, which is this one
            os.set_inheritable(number, True)  # noqa: FBT003  (as os has it)
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open(mode, encoding="utf-8"))  # noqa: SIM115  (stays open)
