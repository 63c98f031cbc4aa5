"""The scripts for the shells."""

import shutil
import subprocess
import sys

import pytest
from support.cli import environment

from pipetrain import cli
from pipetrain.commands.completion import SCRIPTS

_FUNCTION = f'pipetrain() {{ {sys.executable} -m pipetrain "$@"; }}'


@pytest.mark.parametrize("shell", SCRIPTS)
def test_script_is_printed_for_every_shell(capsys, shell):
    assert cli.carry_out(["completion", shell]) == 0
    assert capsys.readouterr().out == SCRIPTS[shell]
    assert f"pipetrain completion {shell}" in cli._parsers()[1]["completion"].format_help()


def test_missing_shell_is_named_with_the_choices(capsys):
    assert cli.carry_out(["completion"]) == 2
    assert (
        capsys.readouterr().err
        == "pipetrain: error: pipetrain completion: SHELL is missing; choose from bash, zsh, fish\n"
    )


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
@pytest.mark.parametrize(("breaks", "completed"), [(" =", "pipeoptim "), (" ", "method=pipeoptim ")])
def test_bash_gets_the_part_of_a_word_that_it_asks_for(tmp_path, breaks, completed):
    """Bash takes what follows a `=` for a word of its own, unless COMP_WORDBREAKS says otherwise."""
    script = f"""
{_FUNCTION}
eval "$(pipetrain completion bash)"
COMP_WORDBREAKS="{breaks}"; COMP_LINE="pipetrain run method=pipeo --svg"; COMP_POINT=26; COMP_WORDS=(pipetrain)
_pipetrain
printf '<%s>' "${{COMPREPLY[@]}}"
"""
    done = subprocess.run(["bash", "-c", script], cwd=tmp_path, env=environment(), capture_output=True, text=True)
    assert (done.stdout, done.stderr) == (f"<{completed}>", "")


_FISH = f"""
function pipetrain; {sys.executable} -m pipetrain $argv; end
pipetrain completion fish | source
complete -C 'pipetrain run method=pipeo'
"""
_ZSH = f"""
{_FUNCTION}
compdef() {{ }}
compadd() {{ print -r -- "$@" }}
eval "$(pipetrain completion zsh)"
words=(pipetrain run method=pipeo) CURRENT=3
_pipetrain
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "completed"),
    [
        (("fish", "--no-config", "-c", _FISH), "method=pipeoptim\n"),
        (("zsh", "-f", "-c", _ZSH), "-- method=pipeoptim\n"),
    ],
    ids=["fish", "zsh"],
)
def test_other_shells_get_whole_words(tmp_path, words, completed):
    if shutil.which(words[0]) is None:
        pytest.skip(f"no {words[0]}")
    done = subprocess.run(words, cwd=tmp_path, env=environment(), capture_output=True, text=True)
    assert (done.stdout, done.stderr) == (completed, "")
