"""`python -m papers stability` end to end, and its report."""

import dataclasses
import functools
import json
import re
import subprocess
import sys

import pytest
from support.cli import environment, papers
from support.libsvm import regression_samples, write_libsvm

from papers.cli import PROGRAM
from papers.stability import curves, report
from papers.stability.checks import Check
from papers.stability.tables import Setting
from pipetrain import cli

PNG = b"\x89PNG"


@pytest.mark.slow
def test_stability_with_data_writes_all_figures_and_tables(tmp_path):
    data = write_libsvm(tmp_path / "data.gz", *regression_samples())
    done = papers("stability", "-o", "out", "--data", str(data), "--iterations", "300", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert "FAILS  lemma" not in done.stdout
    assert done.stdout.count("holds  lemma") == 8
    assert "against delay, Δ = 5" in done.stdout
    assert "against discrepancy, τ_F = 40, τ_B = 10, τ_R = 20" in done.stdout
    assert "plain printed     0.018059" in done.stdout
    assert "plain rule        0.037743" in done.stdout
    assert "Regression by delayed SGD, 300 iterations" in done.stdout
    for name in ("fig05", "fig06", "fig10", "fig16"):
        assert (tmp_path / "out" / f"{name}.png").read_bytes().startswith(PNG)
    written = json.loads((tmp_path / "out" / "stability.json").read_text())
    assert all(check["holds"] for check in written["lemmas"])
    for row in written["simulated"]:
        assert row["simulated"] == pytest.approx(row["roots"], rel=2e-3)
    assert [row["tau"] for row in written["figures"]["fig05b"]] == [1, 2, 4, 8, 16, 32, 64, 128, 256]
    at = written["figures"]["fig10"]["discrepancy"].index(5.0)
    assert written["figures"]["fig10"]["T2 by the rule"][at] == pytest.approx(0.037743, abs=1e-6)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--data", "nowhere"], "--data nowhere: no such file"),
        (["--momentum", "1"], "momentum=1: must be at least 0 and below 1"),
        (["--tau-backward", "50"], "tau_backward=50: must be between 0 and tau_forward=40"),
        (["--iterations", "0"], "--iterations 0: must be 1 or more"),
        (["-o", "file"], "-o file: exists and is not a directory"),
    ],
)
def test_stability_with_wrong_option_exits_with_2(tmp_path, monkeypatch, capsys, words, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    assert cli.carry_out(["stability", *words], PROGRAM) == 2
    shown = capsys.readouterr()
    assert message in shown.err
    assert (shown.err.count("\n"), shown.out) == (1, "")
    assert not (tmp_path / "stability").exists()


@pytest.mark.slow
def test_stability_without_data_leaves_out_fig_5b_and_says_so(tmp_path, monkeypatch, capsys):
    # what is slow and tested above
    monkeypatch.setattr(report, "_tables", lambda _setting: {})
    monkeypatch.setattr(report, "claim_checks", list)
    monkeypatch.setattr(report, "lemma_checks", list)
    monkeypatch.setattr(report.curves, "fig10", functools.partial(curves.fig10, 5))
    assert report.report(Setting(), None, 1, tmp_path)
    assert "For 5(b) give --data FILE: the data set cpusmall" in capsys.readouterr().out
    assert json.loads((tmp_path / "stability.json").read_text())["figures"]["fig05b"] is None


def test_stability_fails_if_a_lemma_fails(tmp_path, monkeypatch, capsys):
    for name, found in (("_tables", {}), ("_figures", {})):
        monkeypatch.setattr(report, name, lambda *_, found=found: found)
    monkeypatch.setattr(report, "claim_checks", list)
    monkeypatch.setattr(report, "lemma_checks", lambda: [Check("lemma 9", "2 = 3", "2", holds=False)])
    assert not report.report(Setting(), None, 1, tmp_path)
    assert "FAILS  lemma 9   2 = 3  2" in capsys.readouterr().out


def test_stability_help_names_the_defaults_of_the_setting(capsys):
    with pytest.raises(SystemExit):
        cli.carry_out(["stability", "--help"], PROGRAM)
    shown = " ".join(capsys.readouterr().out.split())
    for field in dataclasses.fields(Setting):
        option = f"--{field.name.replace('_', '-')}"
        assert f"[{option} " in shown
        if field.default is not None:
            assert re.search(rf"{option} [^-]* default {field.default:g}\b", shown), option


def test_stability_imports_neither_torch_nor_matplotlib(tmp_path):
    code = "import sys, papers.stability.report; sys.exit('torch' in sys.modules or 'matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment()).returncode == 0
