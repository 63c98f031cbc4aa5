"""`python -m papers`: wrong input, and help."""

import re
import shlex
import subprocess
import sys

import pytest
from support.cli import environment

from papers.cli import PROGRAM
from pipetrain import cli
from pipetrain.engine.errors import ExitCode

WRONG = """\
staleness extra
staleness --stages 0
staleness -o .
stability --tau-forward -1
pages -o plain.txt
pages gpipe
pages --results /nonexistent
reproduce
reproduce nothing
reproduce zhang/table2_lenet5 --scale medium
reprodce zhang
"""


@pytest.mark.parametrize("line", WRONG.splitlines())
def test_wrong_input_is_answered_in_one_line(line, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "plain.txt").write_text("text\n")
    try:
        code = cli.carry_out(shlex.split(line), PROGRAM)
    except SystemExit as end:
        code = end.code
    said = capfd.readouterr()
    assert (code, said.out, said.err.count("\n")) == (ExitCode.WRONG_USAGE, "", 1), said
    assert said.err.startswith("pipetrain: error: ")
    assert [path.name for path in tmp_path.iterdir()] == ["plain.txt"]


def test_help_describes_every_command_without_torch_or_hydra(tmp_path):
    code = (
        "import sys, contextlib, papers.cli, pipetrain.cli as c\n"
        "with contextlib.suppress(SystemExit): c.carry_out(['--help'], papers.cli.PROGRAM)\n"
        "sys.exit(sum(name in sys.modules for name in ('torch', 'numpy', 'matplotlib', 'hydra')))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for command in ("reproduce", "pages", "staleness", "stability"):
        assert re.search(rf"^    {command}\s+\w+", done.stdout, re.MULTILINE), command
