"""The shortest fault drill: of one fault."""

import subprocess
import sys
from pathlib import Path

import pytest
from support.cli import environment
from support.processes import needs_proc

pytestmark = [pytest.mark.slow, needs_proc]

DRILL = Path(__file__).resolve().parents[1] / "benchmarks" / "drill.py"


def test_run_with_a_failure_ends_with_undisturbed_bits():
    words = [sys.executable, str(DRILL), "--seed", "7", "--only", "0"]
    done = subprocess.run(words, env=environment(), capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("same bits") == 2, done.stdout  # in its line, and in the counts
