"""Processes that tests start, and find from outside."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import pipetrain

needs_proc = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds processes in /proc")


def environment(**more: str) -> dict[str, str]:
    """Environment of a process that imports the tests, and what they test."""
    code = [str(Path(file).resolve().parents[1]) for file in (__file__, pipetrain.__file__)]
    clean = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "RANK", "WORLD_SIZE")}
    return {**clean, "PYTHONPATH": os.pathsep.join(code), **more}


def python(code: str, *, cwd: Path | None = None, **more: str) -> subprocess.CompletedProcess[str]:
    """A process with this code, which imports modules of `cwd` before all others."""
    words, env = [sys.executable, "-c", code], environment(**more)
    return subprocess.run(words, cwd=cwd, env=env, capture_output=True, text=True, timeout=120)
