"""What the Tab key offers."""

import pytest

from pipetrain import cli


def offered(capsys, line):
    assert cli.carry_out(["completion", "--line", line]) == 0
    out, error = capsys.readouterr()
    assert error == ""
    return out.split("\n")[:-1]


@pytest.mark.parametrize(
    ("line", "candidates"),
    [
        ("pipetrain r", ["report ", "reproduce ", "run "]),
        ("pipetrain --v", ["--version "]),
        ("pipetrain report ", ["papers ", "runs ", "staleness "]),
        ("pipetrain report runs --m", ["--metric "]),
        ("pipetrain list me", ["methods "]),
        ("pipetrain completion ", ["bash ", "fish ", "zsh "]),
        ("pipetrain run --cfg ", ["all ", "hydra ", "job "]),
        ("pipetrain run --m", ["--multirun "]),
        ("pipetrain run tr", ["trace=", "train."]),
        ("pipetrain run train.re", ["train.recompute=", "train.recompute_boundaries="]),
        ("pipetrain run train.recompute=", ["train.recompute=false ", "train.recompute=true "]),
        ("pipetrain run device=c", ["device=cpu ", "device=cuda "]),
        ("pipetrain run --multirun executor=dis", ["executor=distributed "]),
        ("pipetrain run method=gpipe,pipeo", ["method=gpipe,pipeoptim "]),
        ("pipetrain run method=i_timeprest method.st", ["method.staleness_decay="]),
        ("pipetrain timeline --svg schedule=1f1b_", ["schedule=1f1b_2bw ", "schedule=1f1b_flush "]),
        ("pipetrain eval RUN threa", ["threads="]),
    ],
)
def test_words_that_go_on_from_the_last_one_are_offered(capsys, line, candidates):
    assert offered(capsys, line) == candidates


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
def test_nothing_is_offered_and_nothing_said_where_there_is_nothing_to_offer(capsys, line):
    if line:
        assert [each for each in offered(capsys, line) if each] == []
    else:
        assert "run " in offered(capsys, line)
