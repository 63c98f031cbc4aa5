"""What an experiment has to show before it says anything on a claim."""

import pytest

from papers.claims import Apart, Distinct, Reaches, SameRate, Within
from papers.results import MeasuredGroup


def group(name, rate=0.1, *, losses=(0.5, 0.6), **means):
    seeds = {seed: {"loss": loss} for seed, loss in enumerate(losses)}
    return MeasuredGroup(name, 2, {"completed": 2}, means, {}, 0, seeds, frozenset({rate}))


@pytest.mark.parametrize(
    ("control", "met", "unmet", "why"),
    [
        (
            Reaches("x", "gpipe", "bleu", 15),
            {"bleu": 15.0},
            {"bleu": 3.0},
            "gpipe 3 (2 runs) does not reach a final bleu",
        ),
        (Reaches("x", "gpipe", "bleu", 15), {"bleu": 15.0}, {"top1": 90.0}, "must first reach a final bleu of 15"),
        (Reaches("x", "gpipe", "bleu", 15, "a bigram"), {"bleu": 15.0}, {"bleu": 3.0}, "of 15, that of a bigram"),
        (Within("x", "gpipe", "other", "top1", 1.0), {"top1": 49.5}, {"top1": 30.5}, "within 1 of other's final top1"),
        (Within("x", "gpipe", "other", "top1", 1.0), {"top1": 49.5}, {}, "which was not measured"),
    ],
)
def test_control_says_what_the_experiment_lacks(control, met, unmet, why):
    other = group("other", top1=50.0)
    assert control.unmet({"gpipe": group("gpipe", **met), "other": other}) is None
    assert why in control.unmet({"gpipe": group("gpipe", **unmet), "other": other})


@pytest.mark.parametrize(
    ("top1", "why"),
    [
        (48.5, None),
        (49.5, "plain must lose more than 1 of gpipe's final top1; it has plain 49.5 (2 runs), gpipe 50 (2 runs)"),
        (None, None),
    ],
)
def test_method_without_remedy_has_to_lose_or_diverge(top1, why):
    plain = MeasuredGroup("plain", 0, {"diverged": 2}, {}, {}, 0) if top1 is None else group("plain", top1=top1)
    control = Apart("x", "plain", "y", "gpipe", "top1", 1.0)
    assert control.unmet({"plain": plain, "gpipe": group("gpipe", top1=50.0)}) == why
    assert control.unmet({"plain": plain}).endswith("which was not measured")


def test_methods_that_computed_the_same_bits_are_named():
    control = Distinct("x", ("a", "b"), "nothing is stale")
    assert control.unmet({"a": group("a"), "b": group("b", losses=(0.5, 0.7))}) is None
    why = "a and b computed the same bits under every seed, as they do if nothing is stale"
    assert control.unmet({"a": group("a"), "b": group("b")}) == why
    assert control.unmet({"a": group("a")}) == "a and b must compute different numbers, which was not measured"


def test_groups_of_different_rates_are_named_with_them():
    control = SameRate("x", "pipeline", "sequential")
    assert control.unmet({"pipeline": group("pipeline"), "sequential": group("sequential")}) is None
    found = control.unmet({"pipeline": group("pipeline", 0.01), "sequential": group("sequential")})
    assert found.startswith("pipeline has a learning rate of 0.01 and sequential of 0.1")
