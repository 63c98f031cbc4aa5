"""Processes that tests start, and find from outside."""

import os
from pathlib import Path

import pytest

import pipetrain

needs_proc = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds processes in /proc")


def environment(**more: str) -> dict[str, str]:
    """Environment of a process that imports the tests, and what they test."""
    code = [str(Path(file).resolve().parents[1]) for file in (__file__, pipetrain.__file__)]
    clean = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "RANK", "WORLD_SIZE")}
    return {**clean, "PYTHONPATH": os.pathsep.join(code), **more}
