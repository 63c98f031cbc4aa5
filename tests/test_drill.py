"""A short version of the fault drill: a worker is killed, the command is killed, a byte of a checkpoint changes."""

import subprocess
import sys
from pathlib import Path

import pytest
from support.cli import environment

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds processes in /proc"),
]

DRILL = Path(__file__).resolve().parents[1] / "benchmarks" / "drill.py"


def test_runs_in_which_something_fails_end_with_the_bits_of_an_undisturbed_one():
    words = [sys.executable, str(DRILL), "--seed", "7", "--only", "0", "1", "2"]
    done = subprocess.run(words, env=environment(), capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("same bits") == 6, done.stdout  # each in its line, and in the counts
