"""The curves of PipeMare's figures show what the paper says of them."""

from support.libsvm import regression_samples, write_libsvm

from pipetrain.theory.stability.curves import fig5b, fig6b
from pipetrain.theory.stability.lemmas import delay_limit
from pipetrain.theory.stability.regression import load


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
