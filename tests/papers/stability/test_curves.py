"""Regression by delayed SGD: its data file, its steps, and lemma 1 on data."""

import re
from pathlib import Path

import numpy as np
import pytest
from support.libsvm import regression_samples, write_libsvm

from papers.stability.curves import Regression, delayed_sgd, fig5b, fig6b, fig16, load
from papers.stability.lemmas import delay_limit
from pipetrain.engine.errors import ConfigError


def test_libsvm_file_is_standardized(tmp_path):
    inputs, targets = regression_samples()
    problem = load(write_libsvm(tmp_path / "data.gz", inputs, targets))
    assert problem.inputs == pytest.approx((inputs - inputs.mean(0)) / inputs.std(0))
    assert problem.targets == pytest.approx(targets - targets.mean())


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


def test_regression_diverges_where_lemma_1_says(tmp_path):
    problem = load(write_libsvm(tmp_path / "data.gz", *regression_samples()))
    heatmap = fig5b(problem, 4000)
    bounds = [delay_limit(tau, heatmap.largest_curvature) for tau in heatmap.taus]
    steps = heatmap.largest_steps()
    assert [0.7 * bound < step < 1.2 * bound for bound, step in zip(bounds[:6], steps[:6], strict=True)] == [True] * 6
    assert heatmap.losses[:, :10].min() >= heatmap.least_loss


def test_fig_6b_shows_what_its_caption_says():
    radii = fig6b(60)
    stable = {name: values[radii.x < 0.09].max() < 1 for name, values in radii.lines.items()}
    assert stable == {"no discrepancy": True, "discrepancy": False, "T2 as printed": True, "T2 by the rule": True}


@pytest.mark.slow
@pytest.mark.parametrize(("figure", "number"), [(fig6b, 6), (fig16, 16)])
def test_docs_state_the_largest_stable_steps_of_the_figures(figure, number):
    curves = figure(1000)
    largest = [curves.x[np.argmax(radii > 1 + 1e-9) - 1] for radii in curves.lines.values()]
    page = Path(__file__).parents[3].joinpath("docs", "stability.md").read_text(encoding="utf-8")
    caption = page.partition(f"*Fig. {number}. ")[2].partition("*\n")[0]
    stated = [float(each) for each in re.findall(r"\b0\.\d+", caption.partition("largest stable steps are")[2])]
    assert stated == pytest.approx(largest, rel=0.01)
