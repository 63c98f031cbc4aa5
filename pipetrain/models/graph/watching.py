"""Which line of a forward changes what Python keeps, and in which module."""

import sys
import sysconfig
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

from torch import nn

from pipetrain.models.graph.place import is_the_users, shown
from pipetrain.models.graph.python_state import Place
from pipetrain.models.graph.recorder import Recorder

_CALLED = {"numpy", "sympy", "mpmath"}
_Trace = Callable[[FrameType, str, Any], Any]


@dataclass(frozen=True)
class Change:
    """A change by code that a graph does not repeat.

    Attributes:
        module: the innermost one whose code does it; None for a global, which other processes have for themselves.
        reason: what is changed, with the user's line.
    """

    module: nn.Module | None
    reason: str


@dataclass(frozen=True)
class _At:
    """A line of the user's code; `module` is the one that it belongs to, None where that is called as a whole."""

    line: str
    module: nn.Module | None


class Watch:
    """Compares, between any two lines of the user's code, what is kept in some places.

    Args:
        places: which may change.
        module: that has them.
        recorder: of its forward.
    """

    def __init__(self, places: Iterable[Place], module: nn.Module, recorder: Recorder) -> None:
        self._module = module
        self._recorder = recorder
        self._held = {place: place.held(module) for place in places}
        self._at = _At("", module)
        self._modules: dict[FrameType, nn.Module | None] = {}
        self._before: Any = None
        self.changes: list[Change] = []

    def __enter__(self) -> "Watch":
        self._before = sys.gettrace()
        sys.settrace(self._entered)
        return self

    def __exit__(self, *error: object) -> None:
        sys.settrace(self._before)
        self._compare()

    def _entered(self, frame: FrameType, _event: str, _argument: Any) -> _Trace | None:
        if not _is_watched(frame):
            return None
        self._modules[frame] = self._recorder.inside
        return self._moved(frame, "call", None)

    def _moved(self, frame: FrameType, event: str, _argument: Any) -> _Trace:
        self._compare()
        at: FrameType | None = frame
        if event == "return":
            del self._modules[frame]
            while at is not None and at not in self._modules:
                at = at.f_back
        if at is not None:
            self._at = _At(shown(at.f_code.co_filename, at.f_lineno), self._modules[at])
        return self._moved

    def _compare(self) -> None:
        for place, before in self._held.items():
            after = place.held(self._module)
            if after != before:
                self._held[place] = after
                if self._at.module is not None:
                    reason = f"the forward {place.described(self._module)} ({self._at.line})"
                    everywhere = place.path is None and not place.is_generator
                    self.changes.append(Change(None if everywhere else self._at.module, reason))


def _is_watched(frame: FrameType) -> bool:
    return is_the_users(frame) and not _is_a_librarys(frame.f_code.co_filename)


@cache
def _is_a_librarys(file: str) -> bool:
    """Whether a file is of Python's own or of what torch calls without data: too many lines to stop at."""
    path = Path(file)
    if {"site-packages", "dist-packages"} & set(path.parts):
        return bool(_CALLED & set(path.parts))
    return path.is_relative_to(sysconfig.get_path("stdlib"))
