import sys

import pytest
from support.stored_runs import write_run

from pipetrain import cli
from pipetrain.engine.errors import ExitCode


@pytest.mark.parametrize("words", [("report", "runs", "nowhere"), ("report",), ("report", "everything")])
def test_wrong_use_of_the_report_is_one_line(words, monkeypatch, capsys, main):
    monkeypatch.setattr(sys, "argv", ["pipetrain", *words])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 2
    assert "error: " in capsys.readouterr().err.splitlines()[-1]


def test_report_of_damaged_runs_only_fails_and_keeps_files(tmp_path, capsys):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "summary.json").write_text("{")
    (tmp_path / "old.md").write_text("good")
    assert cli.carry_out(["report", "runs", str(tmp_path), "-o", str(tmp_path / "old")]) is ExitCode.WRONG_USAGE
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"pipetrain: error: {tmp_path}/a: a damaged run: {tmp_path}/a/summary.json: damaged: ")
    assert err.endswith("; so is 1 more, and nothing is left to compare\n")
    assert (tmp_path / "old.md").read_text() == "good"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["summary", "plan.json", "trace"])
def test_report_does_not_take_the_name_of_a_file_of_a_run(tmp_path, capsys, name):
    write_run(tmp_path)
    before = (tmp_path / "summary.json").read_text()
    assert cli.carry_out(["report", "runs", str(tmp_path), "-o", str(tmp_path / name)]) is ExitCode.WRONG_USAGE
    assert f".json is a file of the run in {tmp_path}; give another name" in capsys.readouterr().err
    assert (tmp_path / "summary.json").read_text() == before
    assert cli.carry_out(["report", "runs", str(tmp_path), "-o", str(tmp_path / "other")]) is ExitCode.COMPLETED
