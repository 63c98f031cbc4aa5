"""Candidates that the Tab key offers, and the scripts for the shells."""

import shutil
import subprocess
import sys

import pytest
from support.cli import environment
from support.quick_cases import every

from pipetrain import cli
from pipetrain.commands.completion import SCRIPTS
from pipetrain.runner.config.choices import papers_folder

_FUNCTION = f'pipetrain() {{ {sys.executable} -m pipetrain "$@"; }}'


def offered(capsys, line):
    assert cli.carry_out(["completion", "--line", line]) == 0
    out, error = capsys.readouterr()
    assert error == ""
    return out.split("\n")[:-1]


@pytest.mark.parametrize(
    ("line", "candidates"),
    every(
        3,
        [
            ("pipetrain r", ["report ", "run "]),
            ("pipetrain --v", ["--version "]),
            ("pipetrain report ", ["distances ", "runs "]),
            ("pipetrain report runs --m", ["--metric "]),
            ("pipetrain list me", ["messages ", "methods "]),
            ("pipetrain completion ", ["bash ", "fish ", "zsh "]),
            ("pipetrain run --cfg ", ["all ", "hydra ", "job "]),
            ("pipetrain run --m", ["--multirun "]),
            ("pipetrain run --c", ["--cfg ", "--config-dir "]),
            ("pipetrain run --multirun method=gpipe,lwp seed=0,1 partition.st", ["partition.stages="]),
            ("pipetrain run tr", ["trace=", "train."]),
            ("pipetrain run train.re", ["train.recompute=", "train.recompute_boundaries="]),
            ("pipetrain run train.recompute=", ["train.recompute=false ", "train.recompute=true "]),
            ("pipetrain run device=c", ["device=cpu ", "device=cuda "]),
            ("pipetrain run --multirun executor=dis", ["executor=distributed "]),
            ("pipetrain run method=gpipe,pipeo", ["method=gpipe,pipeoptim "]),
            ("pipetrain run log.to=[t", ["log.to=[tensorboard] "]),
            ("pipetrain run log.to=[mlflow,", ["log.to=[mlflow,tensorboard] ", "log.to=[mlflow,wandb] "]),
            ("pipetrain run topology.gigabytes_per_s=", [""]),
            ("pipetrain run method=i_timeprest method.st", ["method.staleness_decay="]),
            ("pipetrain timeline --seconds schedule=1f1b_", [f"schedule=1f1b_{end} " for end in ("2bw", "flush", "v")]),
            ("pipetrain eval RUN threa", ["threads="]),
            (
                "pipetrain run train.precision=",
                ["train.precision=bf16 ", "train.precision=fp16 ", "train.precision=fp32 "],
            ),
            ("pipetrain run experiment=multi", ["experiment=multi30k "]),
            (f"pipetrain run -cd {papers_folder()} experiment=pipeo", ["experiment=pipeoptim/"]),
            (f"pipetrain run -cd {papers_folder()} experiment=map/tr", ["experiment=map/transformer "]),
        ],
    ),
)
def test_words_that_go_on_from_the_last_one_are_offered(capsys, line, candidates):
    assert offered(capsys, line) == candidates


@pytest.mark.parametrize("flag", ["--config-dir={} ", "--config-dir {} ", "-cd {} "])
def test_choices_in_a_folder_of_ones_own_are_offered(tmp_path, capsys, flag):
    (tmp_path / "experiment" / "mine").mkdir(parents=True)
    (tmp_path / "experiment" / "mine" / "letters.yaml").write_text("# @package _global_\n")
    line = f"pipetrain run {flag.format(tmp_path)}experiment=m"
    assert offered(capsys, line) == ["experiment=mine/", "experiment=multi30k "]
    assert offered(capsys, f"{line}ine/") == ["experiment=mine/letters "]
    assert offered(capsys, f"{line}ine/letters partition.st") == ["partition.stages="]


@pytest.mark.parametrize(
    "line",
    [
        "",
        "pipetrain eval ",  # a directory, which the shell completes
        "pipetrain trian ",
        "pipetrain run train.epochs=( tra",
        "pipetrain run nothing=1 tra",
        "pipetrain export -o ",
    ],
)
def test_completion_without_candidates_prints_nothing(capsys, line):
    if line:
        assert [each for each in offered(capsys, line) if each] == []
    else:
        assert "run " in offered(capsys, line)


@pytest.mark.parametrize("shell", SCRIPTS)
def test_script_is_printed_for_every_shell(capsys, shell):
    assert cli.carry_out(["completion", shell]) == 0
    assert capsys.readouterr().out == SCRIPTS[shell]
    with pytest.raises(SystemExit):
        cli.carry_out(["completion", "--help"])
    assert f"pipetrain completion {shell}" in capsys.readouterr().out


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
