"""The report of what a GPU needs: parts that end, fail or take too long, and tiny measurements on the CPU."""

import json
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "gpu_report.py"


def carried_out(folder, code, seconds=30.0):
    """What the report has of a part that runs this code of Python's."""
    names = runpy.run_path(str(SCRIPT))
    part = names["Part"]("part", seconds, [sys.executable, "-c", code])
    names["carry_out"](part, seconds, names["Report"](folder / "gpu.json"))
    return json.loads((folder / "gpu.json").read_text())["parts"]["part"]


def test_lines_of_json_are_the_results_of_a_part(tmp_path):
    found = carried_out(tmp_path, "print('{\"a\": 1}\\n{no json}\\nnone', flush=True); print('{\"b\": [2]}')")
    assert (found["a"], found["b"], found["exit_code"]) == (1, [2], 0)


def test_failed_part_leaves_its_last_lines(tmp_path):
    found = carried_out(tmp_path, "print('{\"a\": 1}', flush=True); raise SystemExit('no GPU')")
    assert (found["a"], found["exit_code"], found["last_lines"][-1]) == (1, 1, "no GPU")


def test_part_that_takes_too_long_keeps_its_results(tmp_path):
    code = "import subprocess, time; print('{\"a\": 1}', flush=True); subprocess.Popen(['sleep', '60']); time.sleep(60)"
    found = carried_out(tmp_path, code, seconds=2.0)
    assert (found["a"], found["exit_code"]) == (1, None)


@pytest.mark.slow
@pytest.mark.parametrize("part", ["speed_gpt2", "kernels", "memory", "host_time", "bits"])
def test_part_measures_a_tiny_model_on_the_cpu(tmp_path, part):
    words = ["--device", "cpu", "--tiny", "--parts", part, "--out", str(tmp_path / "gpu.json")]
    subprocess.run([sys.executable, str(SCRIPT), *words], check=True, timeout=280)
    found = json.loads((tmp_path / "gpu.json").read_text())["parts"][part]
    assert found["exit_code"] in (0, None)  # on a busy machine it may be stopped
    assert len(found) > 2
