"""The examples run, and print what they say."""

import re
import runpy
from pathlib import Path

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"


def test_example_of_two_stages_learns_and_shows_stale_weights(capsys):
    runpy.run_path(str(EXAMPLES / "two_stages.py"), run_name="__main__")
    out = capsys.readouterr().out
    losses = [float(loss) for loss in re.findall(r"^epoch \d+  loss ([\d.]+)$", out, re.MULTILINE)]
    assert len(losses) == 5
    assert losses[-1] < 0.7 * losses[0]
    assert "stage 0  staleness forward [1], backward [1], weight versions 2" in out
    assert "stage 1  staleness forward [0], backward [0], weight versions 1" in out
