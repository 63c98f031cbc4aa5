"""A short version of the fault drill, and its link between two machines where one can be made."""

import subprocess
import sys
from pathlib import Path

import pytest
from support.cli import environment
from support.processes import needs_proc

pytestmark = [pytest.mark.slow, needs_proc]

DRILL = Path(__file__).resolve().parents[1] / "benchmarks" / "drill.py"


def test_runs_with_failures_end_with_undisturbed_bits():
    words = [sys.executable, str(DRILL), "--seed", "7", "--only", "0", "1", "2", "12"]
    done = subprocess.run(words, env=environment(), capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("same bits") == 8, done.stdout  # each in its line, and in the counts
