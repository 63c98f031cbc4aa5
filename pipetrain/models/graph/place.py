"""Where in the user's code a forward stands, for messages."""

import os
import sys
from pathlib import Path
from types import FrameType

import torch

_NOT_THE_USERS = (f"{Path(torch.__file__).parent}{os.sep}", f"{Path(__file__).parents[2]}{os.sep}")


def current_line() -> str:
    """`file.py:12` of the innermost frame outside torch and pipetrain."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not is_the_users(frame):
        frame = frame.f_back
    return "" if frame is None else shown(frame.f_code.co_filename, frame.f_lineno)


def line_of(error: BaseException) -> str:
    """The same of the frame that an error was raised in."""
    traceback, line = error.__traceback__, ""
    while traceback is not None:
        if is_the_users(traceback.tb_frame):
            line = shown(traceback.tb_frame.f_code.co_filename, traceback.tb_lineno)
        traceback = traceback.tb_next
    return line


def shown(file: str, line: int) -> str:
    """`file.py:12`, as seen from the current folder."""
    path = Path(file)
    return f"{path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path}:{line}"


def is_the_users(frame: FrameType) -> bool:
    """Whether it is outside torch and pipetrain."""
    return not frame.f_code.co_filename.startswith((*_NOT_THE_USERS, "<"))
