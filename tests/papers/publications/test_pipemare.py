"""Controls that PipeMare's experiments must pass before they decide a claim."""

from pathlib import Path

import pytest

from papers.judgement import judge
from papers.publications.pipemare import PAPER
from papers.results import Measured, MeasuredGroup


def group(name, **columns):
    """Five runs, whose values differ by tenths of a point."""
    seeds = {seed: {column: value + 0.1 * (seed % 2) for column, value in columns.items()} for seed in range(5)}
    means = {column: value + 0.04 for column, value in columns.items()}
    return MeasuredGroup(name, 5, {"completed": 5}, means, dict.fromkeys(columns, 0.05), 0, seeds)


def results(**experiments):
    made = {name: {"command": f"pipetrain run --multirun experiment=pipemare/{name}"} for name in experiments}
    return {name: Measured(name, "small", "top1", found, made[name], Path()) for name, found in experiments.items()}


def verdict(claim, found):
    return judge(PAPER.rules[claim], found, superlative=claim in PAPER.superlatives, best=True)


@pytest.mark.parametrize(
    ("pipedream", "plain", "word", "why"),
    [
        (79.5, 70.0, "seen at small scale", "within the margin of gpipe"),
        (78.0, 70.0, "not tested here", "pipedream must come within 1 of gpipe's best top1"),
        (79.5, 79.4, "not tested here", "t1=false t2=false must lose more than 1 of gpipe's best top1"),
    ],
)
def test_images_decide_only_where_pipedream_trains_and_plain_asynchrony_loses(pipedream, plain, word, why):
    found = results(
        table2_cifar10=[group("pipemare", best_top1=79.8)],
        table2_cifar10_gpipe=[group("gpipe", best_top1=80.0)],
        table2_cifar10_pipedream=[group("pipedream", best_top1=pipedream)],
        table3_cifar10=[group("t1=false t2=false", best_top1=plain), group("t1=true t2=true", best_top1=79.8)],
    )
    assert verdict("cifar_matches", found).verdict == word
    assert why in verdict("cifar_matches", found).why[0]
    diverges = verdict("asynchrony_diverges", found)
    assert (diverges.verdict, "needs the full scale" in diverges.why[0]) == ("not tested here", True)


@pytest.mark.parametrize(
    ("gpipe", "plain", "both", "word"),
    [
        (16.0, (0.4, 20.0), (15.0, 50.0), "seen at small scale"),
        (16.0, (2.1, 20.0), (15.0, 50.0), "seen at small scale"),
        (16.0, (9.0, 40.0), (15.0, 50.0), "not seen at small scale"),
        (16.0, (0.4, 20.0), (2.1, 24.0), "undecided"),
        (9.0, (0.4, 20.0), (15.0, 50.0), "not tested here"),
    ],
)
def test_translation_counts_as_learned_above_a_bigram_and_if_gpipe_translates(gpipe, plain, both, word):
    groups = {"t1=false t2=false": plain, "t1=true t2=true": both}
    found = results(
        table2_iwslt14_gpipe=[group("gpipe", best_bleu=gpipe, best_top1=55.0)],
        table3_iwslt14=[group(name, best_bleu=bleu, best_top1=top1) for name, (bleu, top1) in groups.items()],
    )
    assert verdict("both_recover", found).verdict.removesuffix(", 1 of 2 experiments") == word
