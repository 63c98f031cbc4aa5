"""PipeMare: utilization, memory of weights and activations (tables 1, 2, 4, 5, fig. 9) from formulas and our models."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import cache, partial
from pathlib import Path

import torch

from papers.claims import (
    DOES_NOT_HOLD,
    HOLDS,
    HOLDS_PARTLY,
    Apart,
    Control,
    RankingClaim,
    Reaches,
    Rule,
    Verdict,
    Within,
)
from papers.closed_forms import utilization_of_gpipe
from papers.difference import Relation
from papers.paper import Comparison, Finding, Paper, PaperFigure, Tables, Value
from papers.publications.figures import draw_stages
from papers.publications.pipemare_memory import (
    delay_plus_one_microbatch,
    kept,
    kept_by_gpipe_with_recomputation,
    kept_with_recomputation,
    memory_ratio,
    order_with_recomputation,
    rounded_up,
    stashed_copies,
    unrounded,
)
from papers.stability.figures import FIGURES as STABILITY_FIGURES
from papers.stability.figures import draw_part
from papers.stability.lemmas import delay_limit
from papers.stability.limits import largest_stable_step
from papers.stability.quadratic import Quadratic, matched_gamma
from papers.staleness import pipemare_table_1
from pipetrain.engine.models.chain import LayerChain
from pipetrain.engine.models.weight_units import weight_units
from pipetrain.runner.partition.finegrained import stage_bounds
from pipetrain.zoo.models import torchvision_models

_MIB, _BYTES = 2**20, 4
_SGD_COPIES, _ADAM_COPIES = 3, 4
"""Weights, gradient and momentum; Adam has two moments (app. C.2.3)."""
_PIPELINES = {"CIFAR10": (107, 8), "ImageNet": (107, 16), "IWSLT14": (93, 19), "WMT17": (91, math.ceil(29000 / 251))}
"""Data set -> P (§ 4.1, table 5) and N (tables 6, 7; for WMT17 GPipe's 29,000 / 251 tokens of § 4.1)."""
_SIDE = 64
"""The root of the smaller number of stages, or microbatches, that table 4's orders are read off."""
_WARMUP = {"ImageNet": 30, "IWSLT14": 10, "WMT17": 4}
_DELAYS = {
    "(2(P - i) + 2)/N": delay_plus_one_microbatch,
    "(2(P - i) + 1)/N": unrounded,
    "⌈(2(P - i) + 1)/N⌉, as in table 1": rounded_up,
}
_UNDETERMINED = (
    "the paper gives neither the vocabulary nor says which embeddings are shared, so the number of weights is open: {}"
)


def _recomputed(tables: Tables) -> Mapping[str, Value]:
    table = tables["table2"]
    by_warmup = {
        f"{short}_warmup_over_gpipe": Fraction(_util(tables, data, "pipemare_w") / _gpipe(data))
        for short, data in {"imagenet": "ImageNet", "iwslt": "IWSLT14", "wmt": "WMT17"}.items()
    }
    quality = {
        data: {row["method"]: Fraction(row["quality"]) for row in table.rows if row["dataset"] == data}
        for data in _PIPELINES
    }
    return by_warmup | {
        "utilization_over_gpipe_most": 1 / _gpipe("CIFAR10"),
        "memory_below_pipedream_most": max(Fraction(row["memory_ratio"]) for row in table.rows),
        "accuracy_gap_most": max(_best_gap(quality[data]) for data in ("CIFAR10", "ImageNet")),
        "imagenet_warmup_gap": quality["ImageNet"]["gpipe"] - quality["ImageNet"]["pipemare_w"],
        "t1_gap_iwslt": quality["IWSLT14"]["gpipe"] - quality["IWSLT14"]["pipemare"],
        "pipedream_transformer_memory": min(
            table.number("memory_ratio", dataset=data, method="pipedream")
            / table.number("memory_ratio", dataset=data, method="pipemare")
            for data in ("IWSLT14", "WMT17")
        ),
        "t2_memory_sgd": Fraction(100, _SGD_COPIES),
        "t2_memory_adam": Fraction(100, _ADAM_COPIES),
        "t2_decay_theory": math.exp(-2),
    }


def _best_gap(quality: Mapping[str, Fraction]) -> Fraction:
    return quality["gpipe"] - max(value for method, value in quality.items() if method.startswith("pipemare"))


def _util(tables: Tables, dataset: str, method: str) -> float:
    return float(tables["table2"].number("utilization_percent", dataset=dataset, method=method) / 100)


def _gpipe(dataset: str) -> float:
    return utilization_of_gpipe(*_PIPELINES[dataset])


def _exact(tables: Tables) -> list[Comparison]:
    parts = (_utilization, _weights, _ratios, _optimizer, _orders, _recomputation)
    return [comparison for part in parts for comparison in part(tables)]


def _utilization(tables: Tables) -> Iterator[Comparison]:
    for data, (stages, count) in _PIPELINES.items():
        printed = tables["table2"].row(dataset=data, method="gpipe")["utilization_percent"]
        what = f"{data}: GPipe's utilization, N/(N + P - 1) with P = {stages} and N = {count}, %"
        yield Comparison(what, "table 2", printed, 100 * _gpipe(data))
    for data, warmup in _WARMUP.items():
        printed = tables["table2"].row(dataset=data, method="pipemare_w")["utilization_percent"]
        amortized, synchronous = int(printed) / 100, _gpipe(data)
        implied = warmup * (amortized / synchronous - 1) / (1 - amortized)
        note = (
            "§ 4 prints (E + E_sync)/(E + E_sync · Util), which is above 1 for any E; with E_sync / Util in its place "
            f"the printed {printed} % follow from E = {implied:.0f} epochs to the target, which the paper does not give"
        )
        product = 100 * (implied + warmup) / (implied + warmup * synchronous)
        what = f"{data}: PipeMareW's utilization by the formula of § 4 as printed, %"
        yield Comparison(what, "table 2", printed, product, note=note)


def _weights(tables: Tables) -> Iterator[Comparison]:
    for data, imagenet in (("CIFAR10", False), ("ImageNet", True)):
        model = _resnet50(imagenet=imagenet).module
        values = [*model.parameters(), *(buffer for buffer in model.buffers() if buffer.ndim)]
        size = sum(value.numel() for value in values) * _BYTES * _SGD_COPIES / _MIB
        printed = tables["table2"].row(dataset=data, method="gpipe")["memory"]
        note = "the unit is MiB, and the batch-norm statistics are counted with each of the three copies"
        what = f"{data}: weights, gradients and momentum of ResNet-50 with batch-norm statistics, MiB"
        yield Comparison(what, "table 2", printed, size, note=note)
    for data in ("IWSLT14", "WMT17"):
        printed = tables["table2"].row(dataset=data, method="gpipe")["memory"]
        weights = float(printed) * 1e9 / (_ADAM_COPIES * _BYTES)
        note = _UNDETERMINED.format(f"{printed} GB are four copies of {weights / 1e6:.0f} M weights")
        what = f"{data}: weights, gradients and moments of the Transformer, GB"
        yield Comparison(what, "table 2", printed, None, note=note)


def _ratios(tables: Tables) -> Iterator[Comparison]:
    for data, imagenet in (("CIFAR10", False), ("ImageNet", True)):
        printed = tables["table2"].row(dataset=data, method="pipedream")["memory_ratio"]
        found = {name: _ratio(data, name, imagenet=imagenet) for name in _DELAYS}
        others = ", ".join(f"{ratio:.3f} with {name}" for name, ratio in list(found.items())[1:])
        name, nearest = next(iter(found.items()))
        what = f"{data}: PipeDream's memory over GPipe's, X, with delays {name}"
        note = f"{others}; of the delays tried {name} is the nearest, and table 1 prints another"
        yield Comparison(what, "table 2", printed, nearest, note=note, explained=False)
    for data in ("IWSLT14", "WMT17"):
        printed = tables["table2"].row(dataset=data, method="pipedream")["memory_ratio"]
        note = _UNDETERMINED.format("the ratio hangs on how large the embeddings are, which stand in the first stages")
        what = f"{data}: PipeDream's memory over GPipe's, X"
        yield Comparison(what, "table 2", printed, None, note=note)


def _ratio(dataset: str, delay: str, *, imagenet: bool) -> float:
    stages, count = _PIPELINES[dataset]
    return memory_ratio(stashed_copies(_stage_weights(stages, imagenet=imagenet), count, _DELAYS[delay]), _SGD_COPIES)


def _stage_weights(stages: int, *, imagenet: bool) -> list[int]:
    chain = _resnet50(imagenet=imagenet)
    units, named = weight_units(chain), dict(chain.module.named_parameters())
    sizes = [sum(named[name].numel() for name in unit.parameters.values()) for unit in units]
    return [sum(sizes[first:last]) for first, last in stage_bounds(len(sizes), stages)]


@cache
def _resnet50(*, imagenet: bool) -> LayerChain:
    with torch.device("meta"):
        if imagenet:
            return torchvision_models.resnet(50, 3, 1000)
        return torchvision_models.resnet_cifar(50, 3, 10)


def _optimizer(tables: Tables) -> Iterator[Comparison]:
    for data, copies in (("CIFAR10", 3), ("ImageNet", 3), ("IWSLT14", 4), ("WMT17", 4)):
        printed = tables["table2"].row(dataset=data, method="pipemare")["memory_ratio"]
        what = f"{data}: T2's δ with {copies} copies of the weights, X"
        yield Comparison(what, "table 2", printed, Fraction(copies + 1, copies))


def _orders(tables: Tables) -> Iterator[Comparison]:
    """Table 4's powers, seen in what is kept when P or N grows fourfold."""
    sizes = (_SIDE**2, 4 * _SIDE**2)
    kept_of = {
        ("pipemare", "P", "without_recompute"): [kept(size) for size in sizes],
        ("pipemare", "P", "with_recompute"): [kept_with_recomputation(size, math.isqrt(size)) for size in sizes],
        ("gpipe", "N", "with_recompute"): [
            kept_by_gpipe_with_recomputation(sizes[-1], math.isqrt(size), size) for size in sizes
        ],
    }
    for (method, size, column), counts in kept_of.items():
        printed = _power(tables["table4"].row(method=method)[column], size)
        found = math.log(sum(counts[1]) / sum(counts[0]), 4)
        how = column.replace("_recompute", " recomputation")
        yield Comparison(f"{method}: power of {size} in its activations, {how}", "table 4", printed, found)


def _power(order: str, size: str) -> str:
    """Exponent of P or N in an order such as `M P^(3/2)`."""
    text = order.partition(f"{size}^")[2].split(" ")[0]
    return f"{float(Fraction(text.strip('()'))):g}"


def _recomputation(tables: Tables) -> Iterator[Comparison]:
    for row in tables["table5"].rows:
        stages = int(row["stages"])
        what = f"{row['dataset']}: activations left by recomputation, P^(3/2) / P^2 with P = {stages}, X"
        yield Comparison(what, "table 5", row["with_recompute"], order_with_recomputation(stages))
    for stages in sorted({int(row["stages"]) for row in tables["table5"].rows}, reverse=True):
        segment, share = _best_segment(stages)
        printed = tables["table5"].row(dataset="WMT17" if stages == 91 else "IWSLT14" if stages == 93 else "CIFAR10")
        what = f"P = {stages}: the same, counted stage by stage as in fig. 9, segments of {segment}, X"
        note = "table 5 leaves out the constants of its orders; counted, recomputation still saves most of the memory"
        yield Comparison(what, "table 5", printed["with_recompute"], share, note=note)


def _best_segment(stages: int) -> tuple[int, float]:
    """The segment that leaves the least activations, and their share."""
    shares = {s: sum(kept_with_recomputation(stages, s)) / sum(kept(stages)) for s in range(1, stages + 1)}
    best = min(shares, key=shares.__getitem__)
    return best, shares[best]


def _verdicts(_tables: Tables) -> Mapping[str, Verdict]:
    _, share = _best_segment(107)
    ratio = _ratio("CIFAR10", next(iter(_DELAYS)), imagenet=False)
    ten = largest_stable_step(Quadratic(10, 10)) / delay_limit(10)
    plain = Quadratic(2, 1, discrepancy=5.0)
    corrected = replace(plain, gamma=matched_gamma(2, 1))
    before, after = largest_stable_step(plain), largest_stable_step(corrected)
    idle = _gpipe("CIFAR10")
    without = largest_stable_step(Quadratic(10, 4)) - largest_stable_step(Quadratic(10, 4, discrepancy=5.0))
    return {
        "utilization_14": Verdict(HOLDS, [f"GPipe's {100 * idle:.2f} % against 100 %: {1 / idle:.2f}X"]),
        "stability_delay": Verdict(
            HOLDS,
            [
                f"at τ = 10 the roots leave the unit disk at {ten:.6f} of lemma 1's step; `python -m papers "
                "stability` checks all lemmas"
            ],
        ),
        "discrepancy_model": Verdict(
            HOLDS if without > 0 else DOES_NOT_HOLD,
            [
                "at τ_F = 10, τ_B = 4 a discrepancy of Δ = 5 takes the largest stable step down by "
                f"{100 * without / largest_stable_step(Quadratic(10, 4)):.0f} %; see [stability.md](../stability.md)"
            ],
        ),
        "t2_enlarges": Verdict(
            HOLDS_PARTLY if after < before else HOLDS,
            [
                "for the polynomial as printed in app. B.4; by the rule of § 3.2 it narrows it at times, at τ_F = 2, "
                f"τ_B = 1, Δ = 5 from {before:.3f} to {after:.3f}; see [stability.md](../stability.md)"
            ],
        ),
        "memory_2_7": Verdict(
            HOLDS_PARTLY,
            [
                f"{ratio:.2f}X with unrounded delays of one microbatch more than table 1's, against PipeMare without "
                f"T2; with T2, as the accuracies are, {ratio / (4 / 3):.2f}X"
            ],
        ),
        "recompute_memory": Verdict(
            HOLDS_PARTLY,
            [f"the order is P^(3/2); counted with its constants, {share:.3f}X is left of P = 107, not 0.097X"],
        ),
    }


_KEPT, _LEFT = kept(16), kept_with_recomputation(16, 4)


def _draw(path: Path) -> None:
    draw_stages(path, _KEPT, _LEFT)


_BOTH, _NEITHER = "t1=true t2=true", "t1=false t2=false"
_T1, _T2 = "t1=true t2=false", "t1=false t2=true"
_TRAINED: Mapping[str, tuple[Control, ...]] = {
    # in the paper PipeDream loses 0.2 points, and plain asynchrony diverges
    "cifar10": (
        Within("table2_cifar10", "pipedream", "gpipe", "best_top1", points=1.0),
        Apart("table3_cifar10", _NEITHER, "table2_cifar10", "gpipe", "best_top1", points=1.0),
    ),
    # GPipe's 34.5 on IWSLT14; below a BLEU of 15 a network of this size has not learned to translate
    "iwslt14": (Reaches("table2_iwslt14", "gpipe", "best_bleu", least=15),),
}
"""Data -> what shows that methods are trained there as they are in the paper."""
_BIGRAM = 30.5
"""Share of Multi30k's words, in percent, that a bigram of the target gets right, which does not see the source."""
_NO_TRANSLATION = {"best_bleu": 1.0, "best_top1": _BIGRAM}
"""Column -> value up to which a model has not learned to translate: the paper prints a BLEU of 0.0 (§ 4.3)."""


def _against_gpipe(data: str, techniques: str, relation: Relation, within: float | None = None) -> RankingClaim:
    """A row of table 3 against GPipe's of table 2."""
    fails = relation is Relation.FAILS
    bleu = data == "iwslt14" and fails
    return RankingClaim(
        f"table3_{data}",
        techniques,
        relation,
        ("gpipe",),
        "best_bleu" if bleu else None,
        against=f"table2_{data}",
        within=within,
        floor=_NO_TRANSLATION if bleu else {},
        # the paper's delays of up to 27 updates make it diverge; those of the small scale are of 4 at most
        full=fails and data == "cifar10",
        controls=_TRAINED[data],
    )


def _table_2(data: str, method: str, relation: Relation, metric: str | None = None) -> RankingClaim:
    floor = _NO_TRANSLATION if relation is Relation.FAILS else {}
    return RankingClaim(f"table2_{data}", method, relation, ("gpipe",), metric, floor=floor, controls=_TRAINED[data])


_HALF = "10 epochs on translation, annealing over 880 updates"
_TWICE_THE_RATE = (
    "In 10 epochs at a learning rate of 0.012, where GPipe still reaches a BLEU of 16.6 (seeds 1000 and 1001), "
)
_PLAIN_AT_HALF = "plain asynchrony fails, with a BLEU of 1.6 ± 1.7 and a top-1 of 29.9 ± 0.3 (seeds 0 to 2)"

_RULES: Mapping[str, Sequence[Rule]] = {
    "cifar_matches": [_table_2("cifar10", "pipemare", Relation.LIKE)],
    "pipedream_trains_cifar": [_table_2("cifar10", "pipedream", Relation.LIKE)],
    "imagenet_close": [RankingClaim("table2_imagenet", "pipemare_w", Relation.LIKE, ("gpipe",), within=0.1)],
    "wmt17_above": [RankingClaim("table2_wmt17", "pipemare_w", Relation.BETTER, ("gpipe",), "best_bleu")],
    "pipedream_fails": [_table_2("iwslt14", "pipedream", Relation.FAILS, "best_bleu")],
    "stages_harmless": [
        RankingClaim("fig2_cifar10", "stages=107", Relation.LIKE, ("stages=4",)),
        RankingClaim("fig3_iwslt14", "stages=93", Relation.LIKE, ("stages=4",)),
    ],
    "asynchrony_diverges": [_against_gpipe(data, _NEITHER, Relation.FAILS) for data in _TRAINED],
    "warmup_closes_gap": [_table_2("iwslt14", "pipemare_w", Relation.LIKE)],
    "t1_needed": [
        _against_gpipe("cifar10", _NEITHER, Relation.FAILS),
        _against_gpipe("iwslt14", _NEITHER, Relation.FAILS),
        _against_gpipe("iwslt14", _T2, Relation.FAILS),
    ],
    "t1_alone": [
        _against_gpipe("cifar10", _T1, Relation.LIKE),
        # the small scale trains T1 for as many epochs as GPipe, and not for twice as many
        replace(_against_gpipe("iwslt14", _T1, Relation.LIKE), full=True),
    ],
    "t2_alone": [
        _against_gpipe("cifar10", _T2, Relation.LIKE, within=0.5),
        _against_gpipe("iwslt14", _T2, Relation.FAILS),
    ],
    "both_recover": [
        RankingClaim("table3_cifar10", _BOTH, Relation.BETTER, (_NEITHER,), controls=_TRAINED["cifar10"]),
        RankingClaim(
            "table3_iwslt14",
            _NEITHER,
            Relation.FAILS,
            (_BOTH,),
            "best_bleu",
            floor=_NO_TRANSLATION,
            controls=_TRAINED["iwslt14"],
        ),
    ],
    "t2_needed_deep": [
        *(RankingClaim(f"fig8_{data}", _BOTH, Relation.BETTER, (_T1,)) for data in ("cifar10", "iwslt14")),
        *(  # with T1 always on: the small scale of the one, and the other
            RankingClaim(figure, "t2=true", Relation.BETTER, ("t2=false",))
            for figure in ("fig8_iwslt14", "fig12_cifar10")
        ),
    ],
    "hogwild_t1": [
        RankingClaim(f"fig19_{data}", "t1=true", Relation.BETTER, ("t1=false",)) for data in ("cifar10", "iwslt14")
    ],
    "recompute_harmless": [
        RankingClaim(figure, f"{techniques}recompute_boundaries={segments}", Relation.LIKE, (without,))
        for figure, techniques, without, of_figure in (
            ("fig17_cifar10", "t2=true ", "t2=true", ("[0, 25]", "[0, 4, 9, 14, 19, 24, 29, 34, 39, 44]")),
            ("fig18_iwslt14", "t2=true ", "t2=true", ("[0, 17]", "[0, 4, 7, 10, 14, 17, 20, 23, 26, 29]")),
            # the small scales, of which the second has T2 always on
            ("fig17_cifar10", "t2=true ", "t2=true", ("[0, 4]", "[0, 1, 2, 3, 4, 5, 6, 7]")),
            ("fig18_iwslt14", "", "pipemare", ("[0, 3]", "[0, 2, 3, 5, 6, 7]")),
        )
        for segments in of_figure
    ],
    "sensitivity": [
        RankingClaim("fig13_cifar10", "anneal_steps=7820", Relation.BETTER, ("anneal_steps=125120",)),
        RankingClaim("fig13_iwslt14", "anneal_steps=72000", Relation.BETTER, ("anneal_steps=18000",)),
        RankingClaim("fig14_cifar10", "decay=0.9", Relation.WORSE, ("t2=false",), against="fig17_cifar10"),
        RankingClaim("fig15_iwslt14", "warm_up_epochs=20", Relation.BETTER, ("warm_up_epochs=3",)),
        # the small scales
        RankingClaim("fig13_cifar10", "anneal_steps=38", Relation.BETTER, ("anneal_steps=600",)),
        RankingClaim("fig13_iwslt14", "anneal_steps=3520", Relation.BETTER, ("anneal_steps=880",)),
        RankingClaim("fig15_iwslt14", "warm_up_epochs=6", Relation.BETTER, ("warm_up_epochs=1",)),
    ],
}

_DATA = {"cifar10": "CIFAR10", "imagenet": "ImageNet", "iwslt14": "IWSLT14", "wmt17": "WMT17"}
_TECHNIQUES = {_BOTH: "T1+T2", _T1: "T1", _T2: "T2"}
_METRICS = {"top1": "", "bleu": " BLEU"}
"""Metric of the paper -> unit after a number."""


def _printed(tables: Tables, experiment: str) -> Mapping[str, str]:
    """Qualities of table 2, by method, and of table 3, by what is switched on."""
    table, _, data = experiment.partition("_")
    if table not in ("table2", "table3"):
        return {}
    rows = [row for row in tables[table].rows if row["dataset"] == _DATA[data]]
    printed = {row.get("method") or row["techniques"]: row["quality"] + _METRICS[row["metric"]] for row in rows}
    return printed if table == "table2" else {name: printed[row] for name, row in _TECHNIQUES.items()}


PAPER = Paper(
    name="pipemare",
    short="PipeMare",
    citation="Yang, Zhang, Li, Ré, Aberger, De Sa: PipeMare: Asynchronous Pipeline Parallel DNN Training, 2021",
    about="PipeMare trains fine-grained asynchronous pipelines on the newest weights, and mends their delay by "
    "learning rates that fall with it (T1), by a correction of the backward's weights (T2) and by a synchronous "
    "warm-up, PipeMareW.",
    findings=(
        Finding(
            "The formulas for utilization and stability hold, that for memory in part.",
            {"utilization_14": "holds", "stability_delay": "holds", "memory_2_7": "holds partly"},
        ),
        Finding(
            "On a small Transformer, plain asynchrony and PipeDream end far below GPipe, but do not fail altogether "
            "as in the paper.",
            {"asynchrony_diverges": "not seen", "pipedream_fails": "not seen"},
        ),
        Finding(
            "PipeMareW stays below GPipe there, and PipeMare loses accuracy with more stages.",
            {"warmup_closes_gap": "not seen", "stages_harmless": "not seen"},
        ),
        Finding("With twice the stages T2 helps.", {"t2_needed_deep": "seen in part"}),
    ),
    recomputed=_recomputed,
    exact=_exact,
    notes={
        "pipedream_transformer_memory": "2.06 / 1.25 on IWSLT14 is 1.65, as PipeMare keeps δ; 2.06 is PipeDream's "
        "memory over GPipe's, and not over PipeMare's",
    },
    remarks=(
        "Table 1 and app. A.1 sum from i = 0 to P; stages are counted from 1 elsewhere.",
        "Figure 3 amortizes IWSLT14's utilization to a BLEU of 33.9, table 2 to 34.1; § 4.2 gives both 42 %.",
        "Table 2's WMT17 target is a BLEU of 27.4, which PipeMare without warm-up (27.0) does not reach.",
        "The caption of figure 12 says CIFAR20; its text and app. C.2.2 say CIFAR10.",
        "Table 7 gives 19 microbatches to both translation tasks. 29,000 tokens in microbatches of at most 1,792 are "
        "17 at least, and 3,600 in microbatches of 245 are 15.",
    ),
    verdicts=_verdicts,
    rules=_RULES,
    tried={
        "stages_harmless": "a learning rate of 0.03, at which nothing diverges. There PipeMare ends at a best top-1 of "
        "73.2 ± 1.2 in four stages and 53.0 ± 1.9 in 107 (seeds 0 to 4), a gap of 20.1 (95 % 17.2 to 23.1)",
        "t2_needed_deep": "a learning rate of 0.03 with ResNet-8 in 214 stages. There T1 with T2 trains under all of "
        "five seeds, to a best top-1 of 47.7 ± 2.2; T1 alone diverges under three, and ends at 26.8 and 18.0 under the "
        "others. With ResNet-14 at this rate T1 with T2 trains under three of five seeds, to 51.9 ± 2.1, and T1 alone "
        "under one, to 50.7; the others diverge",
        "pipedream_fails": f"{_HALF}. There PipeDream ends at a BLEU of 3.6 ± 0.4 (seeds 0 to 2). {_TWICE_THE_RATE}"
        "PipeDream fails: it ends at a BLEU of 2.6 and 0.5, and a top-1 of 26.5 and 24.0 (seeds 0 and 1)",
        "warmup_closes_gap": f"{_HALF}, 2 of them synchronous. There PipeMareW ends at a BLEU of 17.2 ± 1.2 and GPipe "
        "at 21.7 ± 0.9 (seeds 0 to 4), a gap of 4.5 (95 % 2.5 to 6.4). So PipeMareW has after 20 epochs what GPipe has "
        "after 10",
        "asynchrony_diverges": f"{_HALF}. There {_PLAIN_AT_HALF}; after 20 epochs its top-1 is 31.6 ± 0.6, just above "
        f"the limit. {_TWICE_THE_RATE}plain asynchrony fails, with a top-1 of 25.2 (seed 0). In 20 epochs at a "
        "learning rate of 0.002, which suits GPipe less, everything trains: GPipe reaches a BLEU of 21.9 ± 0.4, T2 "
        "alone 20.6 ± 0.7, T1 with T2 18.8 ± 1.7, T1 alone 18.7 ± 2.1, plain asynchrony 18.7 ± 1.4 and PipeMareW "
        "18.4 ± 0.7 (seeds 0 to 2), and PipeDream 21.3 (seed 0)",
        "t1_needed": f"{_HALF}. There {_PLAIN_AT_HALF}, and T2 alone ends at a BLEU of 3.3 ± 0.9. After 20 epochs "
        "plain asynchrony has a BLEU of 2.4 and a top-1 of 31.6, T2 alone 4.6 and 35.2, T1 alone 21.4 and 51.6",
        "t1_alone": "half the epochs for GPipe on translation. After 10 epochs GPipe ends at a BLEU of 21.7 ± 0.9 "
        "(seeds 0 to 4). T1 alone ends at 21.4 ± 0.3 after 20, and at 3.5 ± 1.1 after 10 (seeds 0 to 2)",
        "t2_alone": f"{_HALF}. There T2 alone ends at a BLEU of 3.3 ± 0.9 (seeds 0 to 2). {_TWICE_THE_RATE}T2 alone "
        "fails: it ends at a BLEU of 0.7 and a top-1 of 26.9 (seed 0)",
        "both_recover": f"{_HALF}. There {_PLAIN_AT_HALF}, and T1 with T2 ends at a BLEU of 14.6 ± 0.3. "
        f"{_TWICE_THE_RATE}plain asynchrony fails, with a top-1 of 25.2, and T1 with T2 hardly trains, with a BLEU of "
        "2.7 and a top-1 of 31.2 (seed 0)",
        "sensitivity": "a learning rate of 0.03 for ResNet (seeds 0 to 2). There annealing over 38 and 600 updates "
        "ends at a best top-1 of 52.6 ± 2.9 and 55.6 ± 4.8. T2 with a decay of 0.9 ends at 51.6 ± 1.4, and with 0.1 "
        "at 55.2 ± 1.3 under two seeds, while the third diverges; without T2 two diverge, and one ends at 47.2",
    },
    best=True,
    printed=_printed,
    computed={
        "table1": lambda _: ["D = 4, N = 2; closed form | measured in a run", *pipemare_table_1(4, 2)],
        **{name: partial(draw_part, name) for name in STABILITY_FIGURES},
    },
    figures=(
        PaperFigure(
            "fig9",
            "pipemare_fig09.svg",
            "Figure 9: activations at each of 16 stages, in four segments, in those of one microbatch. Recomputation "
            f"leaves {sum(_LEFT)} of {sum(_KEPT)}.",
            _draw,
        ),
    ),
)
