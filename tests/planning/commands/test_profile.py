"""`pipetrain profile`: measured, and read from a file."""

import json

import pytest
from support.cli import TINY, pipetrain_here, refused

from pipetrain import cli
from pipetrain.planning.profile.profile_file import read_profile

GRAPH = "".join(
    f"node{i} -- {label} -- forward_compute_time={i}.000, backward_compute_time=2.000, activation_size=[4.0; 4.0], "
    "parameter_size=8.000\n"
    for i, label in ((1, "Input"), (2, "Conv2d(3, 64)"), (3, "ReLU(inplace)"))
) + "".join(f"\tnode{i} -- node{i + 1}\n" for i in (1, 2))


@pytest.fixture
def graph(tmp_path):
    path = tmp_path / "graph.txt"
    path.write_text(GRAPH)
    return path


def test_a_published_graph_is_shown_and_written_as_json(graph, tmp_path, capsys):
    output = tmp_path / "graph.json"
    assert cli.carry_out(["profile", f"profile={graph}", "-o", str(output)]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[0] == "2 layers"
    assert "Conv2d(3, 64)" in shown[2]
    assert shown[-1] == f"written to {output}"
    assert read_profile(output) == read_profile(graph)


def test_a_profile_that_is_only_shown_is_not_written(graph, capsys, monkeypatch):
    monkeypatch.chdir(graph.parent)
    assert cli.carry_out(["profile", f"profile={graph}"]) == 0
    assert "one device takes 9.00 ms" in capsys.readouterr().out
    assert [path.name for path in graph.parent.iterdir()] == ["graph.txt"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["-o", "FILE"], "-o FILE: exists; --force replaces it"),
        (["-o", "."], "-o .: is a folder; name a file in it, such as profile.json"),
        (["-o", "no/x.json"], "no does not exist"),
        (["-o", "new", "profile=none.txt"], "profile=none.txt: cannot be read"),
        (["-o", "new", "train.batch_size=8,16"], "train.batch_size=8,16: must have one value"),
        (["-o", "new", "-cd", "none"], "--config-dir none: "),
    ],
)
def test_what_cannot_work_is_refused_in_one_line(words, message, tmp_path):
    (tmp_path / "FILE").write_text("mine")
    refused("profile", *words, cwd=tmp_path, message=message)
    assert [path.name for path in tmp_path.iterdir()] == ["FILE"]


@pytest.mark.slow
def test_measured_profile_is_written_and_read_back(tmp_path):
    done = pipetrain_here("profile", *TINY, "threads=1", "-o", "a.json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    content = json.loads((tmp_path / "a.json").read_text())
    assert (content["batch_size"], content["provenance"]["threads"]) == (32, 1)
    assert content["bytes_per_s"] > 1e6
    assert "written to a.json" in done.stdout
    again = pipetrain_here("profile", *TINY, "profile=a.json", "-o", "b.json", cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    assert json.loads((tmp_path / "b.json").read_text()) == content
