"""`pipetrain stability` end to end, its data file and its checks."""

import dataclasses
import functools
import gzip
import json
import re
import subprocess
import sys

import numpy as np
import pytest
from support.cli import environment, pipetrain

from pipetrain.errors import ConfigError
from pipetrain.report.stability import report
from pipetrain.theory.stability import curves
from pipetrain.theory.stability.checks import Check, claim_checks, taylor_slope
from pipetrain.theory.stability.curves import fig5b, fig6b
from pipetrain.theory.stability.lemmas import delay_limit
from pipetrain.theory.stability.quadratic import matched_gamma
from pipetrain.theory.stability.regression import Regression, delayed_sgd, load
from pipetrain.theory.stability.tables import Setting, by_delay, by_discrepancy

PNG = b"\x89PNG"


@pytest.fixture(scope="module")
def problem():
    random = np.random.default_rng(0)
    inputs = random.standard_normal((256, 3)) @ np.diag([1.0, 10.0, 300.0])
    return inputs, inputs @ [1.0, -0.3, 0.02] + random.standard_normal(256)


@pytest.fixture
def libsvm(problem, tmp_path):
    rows = zip(*problem, strict=True)
    text = "".join(f"{y} " + " ".join(f"{i}:{v}" for i, v in enumerate(x, 1)) + " 4:7\n" for x, y in rows)
    (tmp_path / "data.gz").write_bytes(gzip.compress(text.encode()))
    return tmp_path / "data.gz"


@pytest.mark.slow
def test_stability_with_data_writes_all_figures_and_tables(tmp_path, libsvm):
    done = pipetrain("stability", "-o", "out", "--data", str(libsvm), "--iterations", "300", cwd=tmp_path)
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
    found = json.loads((tmp_path / "out" / "stability.json").read_text())
    assert all(check["holds"] for check in found["lemmas"])
    for row in found["simulated"]:
        assert row["simulated"] == pytest.approx(row["roots"], rel=2e-3)
    assert [row["tau"] for row in found["figures"]["fig05b"]] == [1, 2, 4, 8, 16, 32, 64, 128, 256]
    at = found["figures"]["fig10"]["discrepancy"].index(5.0)
    assert found["figures"]["fig10"]["T2 by the rule"][at] == pytest.approx(0.037743, abs=1e-6)


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
def test_stability_with_a_wrong_option_is_one_line_and_exit_code_2(tmp_path, monkeypatch, capsys, words, message):
    from pipetrain import cli

    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    monkeypatch.setattr(sys, "argv", ["pipetrain", "stability", *words])
    with pytest.raises(SystemExit) as end:
        cli.main()
    shown = capsys.readouterr()
    assert end.value.code == 2
    assert message in shown.err
    assert (shown.err.count("\n"), shown.out) == (1, "")
    assert not (tmp_path / "stability").exists()


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
    from pipetrain import cli

    with pytest.raises(SystemExit):
        cli.carry_out(["stability", "--help"])
    shown = " ".join(capsys.readouterr().out.split())
    for field in dataclasses.fields(Setting):
        option = f"--{field.name.replace('_', '-')}"
        assert f"{option} {option[2:].replace('-', '_').upper()} " in shown
        if field.default is not None:
            assert re.search(rf"{option} [^-]* default {field.default:g}\b", shown), option


def test_stability_imports_neither_torch_nor_matplotlib(tmp_path):
    code = (
        "import sys, pipetrain.report.stability.report; sys.exit('torch' in sys.modules or 'matplotlib' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment()).returncode == 0


def test_libsvm_file_is_standardized(libsvm, problem):
    found = load(libsvm)
    inputs, targets = problem
    assert found.inputs == pytest.approx((inputs - inputs.mean(0)) / inputs.std(0))
    assert found.targets == pytest.approx(targets - targets.mean())


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"1 1:2\n2 1:x\n", "line 2: could not convert string to float: 'x'; `target index:value …` is expected"),
        (b"1 0:2\n", "line 1: indices count from 1"),
        (b"1 1\n", "line 1: "),
        (b"1 1:2\n2 1:2\n", "no feature that varies in 2 samples"),
        (b"", "in 0 samples"),
        (b"\x1f\x8bnot gzip", "a LIBSVM file, plain or gzip-compressed, is expected"),
        (b"\xff\xfe", "a LIBSVM file, plain or gzip-compressed, is expected"),
    ],
)
def test_file_that_is_no_libsvm_data_set_is_refused(tmp_path, content, message):
    path = tmp_path / "data"
    path.write_bytes(content)
    with pytest.raises(ConfigError) as error:
        load(path)
    assert message in str(error.value)
    assert str(path) in str(error.value)


def test_delayed_sgd_on_one_feature_is_the_quadratic_model():
    x = np.where(np.arange(64) % 2, 1.0, -1.0)
    line = Regression(x[:, None], 3 * x)  # f(w) = (w - 3)²/2
    losses = delayed_sgd(line, (0, 2), np.array([0.1]), range(4))
    deviations = [-3.0]
    for _ in range(4):
        deviations.append(0.9 * deviations[-1])
    assert losses[0, 0] == pytest.approx(deviations[-1] ** 2 / 2)
    # with a delay of 2 weights before the first are 0 too
    late = [-3.0, -3.0, -3.0]
    for _ in range(4):
        late.append(late[-1] - 0.1 * late[-3])
    assert losses[1, 0] == pytest.approx(late[-1] ** 2 / 2)


def test_regression_diverges_where_lemma_1_says(libsvm):
    found = fig5b(load(libsvm), 4000)
    bounds = [delay_limit(tau, found.largest_curvature) for tau in found.taus]
    steps = found.largest_steps()
    assert [0.7 * bound < step < 1.2 * bound for bound, step in zip(bounds[:6], steps[:6], strict=True)] == [True] * 6
    assert found.losses[:, :10].min() >= found.least_loss


def test_fig_6b_shows_what_its_caption_says():
    found = fig6b(60)
    stable = {name: values[found.x < 0.09].max() < 1 for name, values in found.lines.items()}
    assert stable == {"no discrepancy": True, "discrepancy": False, "T2 as printed": True, "T2 by the rule": True}


def test_stability_tables_hold_the_chosen_setting():
    setting = Setting(curvature=2.0, discrepancy=3.0, tau_forward=12, tau_backward=4, tau_recompute=6, decay=0.1)
    row = next(row for row in by_delay(setting) if row["tau_forward"] == 12)
    assert (row["tau_backward"], row["tau_recompute"]) == (4, 6)
    assert row["no_discrepancy"] == pytest.approx(delay_limit(12, 2.0))
    other = next(row for row in by_discrepancy(setting) if row["discrepancy"] == 3.0)
    assert {key: other[key] for key in other if key != "discrepancy"} == {key: row[key] for key in other.keys() & row}
    assert all(row["plain_rule"] > 0 for row in by_delay(setting))


def test_claim_of_app_b4_holds_for_its_polynomial_and_not_for_the_rule():
    assert [check.holds for check in claim_checks()] == [True, True, False, False, True]
    for forward, backward in ((40, 10), (7, 3)):
        gamma = matched_gamma(forward, backward)
        slope = (forward - backward) * (1 - gamma) * 2 * backward
        assert taylor_slope((forward, backward), gamma, printed=False) == pytest.approx(slope)
