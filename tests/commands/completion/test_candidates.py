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
        ("pipetrain r", ["report ", "run "]),
        ("pipetrain --v", ["--version "]),
        ("pipetrain report ", ["runs ", "staleness "]),
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
        ("pipetrain run train.precision=", ["train.precision=bf16 ", "train.precision=fp16 ", "train.precision=fp32 "]),
        ("pipetrain run experiment=pipeo", ["experiment=pipeoptim/"]),
        ("pipetrain run experiment=map/gpt_h", ["experiment=map/gpt_hybrid "]),
    ],
)
def test_words_that_go_on_from_the_last_one_are_offered(capsys, line, candidates):
    assert offered(capsys, line) == candidates


@pytest.mark.parametrize("flag", ["--config-dir={} ", "--config-dir {} ", "-cd {} "])
def test_choices_in_a_folder_of_ones_own_are_offered(tmp_path, capsys, flag):
    (tmp_path / "experiment" / "mine").mkdir(parents=True)
    (tmp_path / "experiment" / "mine" / "letters.yaml").touch()
    line = f"pipetrain run {flag.format(tmp_path)}experiment=m"
    assert offered(capsys, line) == ["experiment=map/", "experiment=mine/", "experiment=multi30k "]
    assert offered(capsys, f"{line}ine/") == ["experiment=mine/letters "]


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
