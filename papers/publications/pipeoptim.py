"""PipeOptim: averages and speed-ups recomputed from tables III to VI, table II from the methods' closed forms."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from fractions import Fraction

from papers.claims import DOES_NOT_HOLD, HOLDS, HOLDS_PARTLY, MeanRatioClaim, RankingClaim, Reaches, Rule, Verdict
from papers.closed_forms import CLOSED, Position
from papers.difference import Relation
from papers.paper import Comparison, Finding, Paper, Tables, Value
from papers.planned_reads import planned_reads
from pipetrain.runner.tracking.throughput import PREDICTED

_DEPTH = 4
"""Stages of every experiment (§ V-A)."""
_OTHERS = {"pipedream": "pipedream", "2bw": "pipedream_2bw", "spectrain": "spectrain"}


def _recomputed(tables: Tables) -> Mapping[str, Value]:
    return {**_accuracies(tables), **_groups(tables), **_throughput(tables), **_overall(tables)}


def _accuracies(tables: Tables) -> Mapping[str, Value]:
    asked = {"sgdm": ("pipedream", "pipedream_2bw"), "adamw": ("gpipe", "pipedream", "pipedream_2bw")}
    found: dict[str, Value] = {}
    for optimizer, others in asked.items():
        rows = [row for row in tables["table4"].rows if row["optimizer"] == optimizer]
        for other in others:
            gaps = [Fraction(row["pipeoptim"]) - Fraction(row[other]) for row in rows]
            found |= _mean_and_most(f"{optimizer}_{other.removeprefix('pipedream_')}", gaps)
    gnmt = tables["table4"].row(model="GNMT-8")
    columns = ("pipeoptim", "gpipe", "pipedream", "pipedream_2bw")
    return found | {f"gnmt8_{column.removeprefix('pipedream_')}": Fraction(gnmt[column]) for column in columns}


def _groups(tables: Tables) -> Mapping[str, Value]:
    rows = tables["table3"].rows
    return {f"group_{n}_optimizer": next(row["optimizer"] for row in rows if row["group"] == n) for n in "23"}


def _throughput(tables: Tables) -> Mapping[str, Value]:
    stated = tables["stated"]
    gnmt = ("max_batch_throughput_gnmt_averaged", "max_batch_throughput_gnmt_maximum")
    averaged, most = (stated.number("value", name=name) for name in gnmt)
    resnet = stated.number("value", name="max_batch_throughput_resnet101")
    return {
        "max_batch_throughput_mean": (resnet + averaged + most) / 3,
        "max_batch_throughput_gnmt_maximum": max(averaged, most),
    }


def _overall(tables: Tables) -> Mapping[str, Value]:
    table, found = tables["table6"], dict[str, Value]()
    for short, other in _OTHERS.items():
        gaps = []
        for model in ("ResNet-101", "Inception-V3"):
            of_both = [table.number("top1", model=model, method=name) for name in ("pipeoptim", other)]
            gaps.append(of_both[0] - of_both[1])
            ours, theirs = (table.number("total_h", model=model, method=name) for name in ("pipeoptim", other))
            found[f"{model.lower().replace('-', '').removesuffix('v3')}_speedup_{short}"] = theirs / ours
        found |= _mean_and_most(f"overall_{short}", gaps)
    return found


def _mean_and_most(name: str, gaps: Sequence[Fraction]) -> Mapping[str, Value]:
    return {f"{name}_mean": sum(gaps) / len(gaps), f"{name}_most": max(gaps)}


def _exact(tables: Tables) -> list[Comparison]:
    return [*_table_ii(tables), *_table_v(tables)]


def _table_ii(tables: Tables) -> Iterator[Comparison]:
    for row in tables["table2"].rows:
        for column, pick in (("weights_least", min), ("weights_most", max)):
            printed = row[column].replace("D", str(_DEPTH))
            what = f"{row['method']}: versions of a stage's weights, {column.removeprefix('weights_')}, D = {_DEPTH}"
            yield Comparison(what, row["source"], printed, Fraction(pick(_versions(row["method"]))))


def _table_v(tables: Tables) -> Iterator[Comparison]:
    for row in tables["table5"].rows:
        ours = Fraction(row["gpipe_minibatch"]) / int(row["gpipe_microbatches"])
        what = f"{row['model']}: GPipe's {row['gpipe_minibatch']} samples in {row['gpipe_microbatches']} microbatches"
        yield Comparison(what, row["source"], row["gpipe"], ours)


def _versions(method: str) -> list[int]:
    return [CLOSED[method].versions(Position(r, _DEPTH, 1)) for r in range(_DEPTH)]


def _verdicts(_tables: Tables) -> Mapping[str, Verdict]:
    most = max(_versions("pipeoptim"))
    ours, spectrain = _predictions("pipeoptim"), _predictions("spectrain")
    return {
        "two_versions": Verdict(
            HOLDS if most <= 2 else DOES_NOT_HOLD,
            [f"its closed form, which every run checks against measurement, has at most {most}"],
        ),
        "one_prediction": Verdict(
            DOES_NOT_HOLD if max(ours) > 1 else HOLDS if min(spectrain) == 2 else HOLDS_PARTLY,
            [
                f"passes of a minibatch that read predicted weights, by stage, from the operation lists of {_DEPTH} "
                f"stages: {_listed(ours)} under PipeOptim, {_listed(spectrain)} under SpecTrain, whose prediction for "
                "the backward of stage r is floor(r/2) updates long, none on the first two"
            ],
        ),
        "spectrain_sgdm_only": Verdict(
            HOLDS,
            [
                "its prediction is a multiple of SGDM's momentum buffer, which other optimizers do not have; "
                "`method=spectrain optimizer=adam` is refused"
            ],
        ),
    }


def _predictions(method: str) -> list[int]:
    """The most passes of a minibatch that read predicted weights, by stage."""
    return [
        max(sum(read.transform is not None for read in reads) for reads in planned_reads(method, _DEPTH, 1, r).values())
        for r in range(_DEPTH)
    ]


def _listed(counts: Iterable[int]) -> str:
    return ", ".join(map(str, counts))


_SGDM = ("table4_alexnet", "table4_resnet101", "table4_inception_v3")
_ADAMW = ("table4_residual_lstm_adamw", "table4_vgg16", "table4_googlenet")
_ADAM = ("table4_residual_lstm_adam", "table4_gnmt8")
_SAME, _LARGEST = ("fig5_resnet101", "fig5_gnmt8", "fig5_gnmt16"), ("table5_gnmt8", "table5_gnmt16")
_TABLE_6 = ("table6_resnet101", "table6_inception_v3")
_TRAINED = {
    # multinomial logistic regression on fashion_mnist_mini, with the best of four weight decays; a network below that
    # is not trained far enough to compare methods
    experiment: (Reaches(experiment, "gpipe", "best_top1", 84.5, whose="a linear classifier", small=True),)
    for experiment in (*_SGDM, "table4_vgg16", "table4_googlenet")
}
"""Preset whose small scale has images -> what shows that GPipe is trained there."""
_LOST_BY_ALEXNET = 2.7
"""Points of top-1 by which PipeOptim is below GPipe in the row of table IV where it loses most."""


def _pipeoptim(
    experiments: Iterable[str],
    relation: Relation,
    *others: str,
    metric: str | None = None,
    within: float | None = None,
) -> list[RankingClaim]:
    return [
        RankingClaim(
            experiment,
            "pipeoptim",
            relation,
            others,
            metric,
            within=within,
            controls=_TRAINED.get(experiment, ()),
        )
        for experiment in experiments
    ]


_RULES: Mapping[str, Sequence[Rule]] = {
    "sgdm_matches_gpipe": _pipeoptim(_SGDM, Relation.LIKE, "gpipe", within=_LOST_BY_ALEXNET),
    "sgdm_above_stashing": _pipeoptim(_SGDM, Relation.BETTER, "pipedream", "pipedream_2bw"),
    "sgdm_like_spectrain": _pipeoptim(_SGDM, Relation.LIKE, "spectrain", within=_LOST_BY_ALEXNET),
    "adamw_best": _pipeoptim(_ADAMW, Relation.BETTER, "gpipe", "pipedream", "pipedream_2bw"),
    "adam_effective": _pipeoptim(_ADAM, Relation.LIKE, "gpipe"),
    "any_optimizer": [
        *_pipeoptim(_SGDM, Relation.LIKE, "gpipe", within=_LOST_BY_ALEXNET),
        *_pipeoptim((*_ADAMW, *_ADAM), Relation.LIKE, "gpipe"),
    ],
    "gnmt8_best_bleu": _pipeoptim(
        ("table4_gnmt8",), Relation.BETTER, "gpipe", "pipedream", "pipedream_2bw", metric="best_bleu"
    ),
    # what fits is decided by the fullest stage, which weights fill at full scale alone
    "larger_batches": [
        RankingClaim(experiment, method, Relation.BETTER, ("pipedream",), "stage_bytes", full=True)
        for experiment in ("fig5_gnmt8", "fig5_gnmt16")
        for method in ("pipeoptim", "pipedream_2bw")
    ],
    "largest_batch_accuracy": [
        *_pipeoptim(_TABLE_6, Relation.BETTER, *_OTHERS.values(), metric="best_top1"),
        *_pipeoptim(_TABLE_6, Relation.BETTER, *_OTHERS.values(), metric="best_top5"),
    ],
    "fastest_to_target": _pipeoptim(_TABLE_6, Relation.BETTER, *_OTHERS.values(), metric="predicted_target_s"),
    "throughput_above_gpipe": [
        MeanRatioClaim(_SAME, "pipeoptim", Relation.BETTER, "gpipe", PREDICTED, factor=1.35),
        MeanRatioClaim(_LARGEST, "pipeoptim", Relation.BETTER, "gpipe", PREDICTED, factor=1.44),
    ],
    "throughput_like_pipedream": [
        MeanRatioClaim((*_SAME, *_LARGEST), "pipeoptim", Relation.LIKE, "pipedream", PREDICTED),
        MeanRatioClaim((*_SAME, *_LARGEST), "pipedream_2bw", Relation.LIKE, "pipedream", PREDICTED),
        RankingClaim("fig5_resnet101", "spectrain", Relation.LIKE, ("pipedream",), PREDICTED),
    ],
}


_ROWS = {
    "alexnet": ("sgdm", "AlexNet"),
    "resnet101": ("sgdm", "ResNet-101"),
    "inception_v3": ("sgdm", "Inception-V3"),
    "residual_lstm_adamw": ("adamw", "Residual LSTM"),
    "vgg16": ("adamw", "VGG-16"),
    "googlenet": ("adamw", "GoogleNet"),
    "residual_lstm_adam": ("adam", "Residual LSTM"),
    "gnmt8": ("adam", "GNMT-8"),
}
"""Preset of table IV -> its row."""


def _printed(tables: Tables, experiment: str) -> Mapping[str, str]:
    table, _, name = experiment.partition("_")
    if table != "table4":
        return {}
    optimizer, model = _ROWS[name]
    unit = " BLEU" if model == "GNMT-8" else ""
    row = tables["table4"].row(optimizer=optimizer, model=model)
    return {method: text + unit for method, text in row.items() if text}


PAPER = Paper(
    name="pipeoptim",
    short="PipeOptim",
    citation="Guan, Li, Liang, Wang, Lu: PipeOptim: Ensuring Effective 1F1B Schedule with Optimizer-Dependent Weight "
    "Prediction",
    about="PipeOptim predicts the weights that a minibatch's backward will meet from the optimizer's own step, so that "
    "an asynchronous 1F1B pipeline needs at most two versions of its weights.",
    findings=(
        Finding("The bound on memory holds.", {"two_versions": "holds"}),
        Finding(
            "With AdamW on the Residual LSTM and with Adam on GNMT-8, PipeOptim ends below GPipe, where the paper "
            "has it ahead.",
            {"adamw_best": "not seen", "gnmt8_best_bleu": "not seen"},
        ),
        Finding(
            "On the small image networks the methods cannot be told apart.",
            {"sgdm_matches_gpipe": "not tested", "sgdm_above_stashing": "undecided"},
        ),
        Finding(
            "Its predicted throughput is above GPipe's, and about PipeDream's.",
            {"throughput_above_gpipe": "seen in part", "throughput_like_pipedream": "seen in part"},
        ),
    ),
    recomputed=_recomputed,
    exact=_exact,
    notes={
        "overall_2bw_most": "55.91 - 50.90 in table VI is 5.01",
        "group_2_optimizer": "§ V-B gives the second group Adam; table III and figure 3 give it AdamW",
        "group_3_optimizer": "§ V-B gives the third group AdamW; table III and figure 4 give it Adam",
        "max_batch_throughput_gnmt_maximum": "an average cannot be above the maximum: 50.5 % and 47.3 % are those of "
        "GNMT-8 and GNMT-16, and only so is their average with ResNet-101's 35.3 % the 44.37 % of the text",
    },
    remarks=(
        "§ V-B says that with SGDM PipeOptim's curves match GPipe's well; in table IV AlexNet loses 2.70 points "
        "(51.93 % to 49.23 %), and SpecTrain reaches 50.14 % there.",
        "§ V-B says that with AdamW PipeOptim is the best of all; table IV has PipeDream-2BW level on GoogleNet "
        "(74.73 %). With Adam it is level with PipeDream on the Residual LSTM (85.52 %), where the text ranks both "
        "second and calls PipeOptim consistently better.",
        "The accuracies of ResNet-101 and Inception-V3 in table VI are 1 to 3 points below those of table IV: table VI "
        "trains with the largest batch that fits, table IV with 56 samples.",
        "Table V has PipeOptim's batches above PipeDream's for both GNMT, as the text says; GPipe's 124 for GNMT-16 is "
        "above all others.",
    ),
    verdicts=_verdicts,
    rules=_RULES,
    superlatives=(
        "sgdm_above_stashing",
        "adamw_best",
        "gnmt8_best_bleu",
        "largest_batch_accuracy",
        "fastest_to_target",
    ),
    tried={
        "adamw_best": "half the learning rate and twice the epochs for the Residual LSTM. There PipeOptim ends at a "
        "best top-1 of 51.0 ± 1.6 and GPipe at 51.4 ± 1.6 (seeds 0 to 3), a gap of 0.36 (95 % -0.03 to 0.76)",
        "gnmt8_best_bleu": "twice the epochs, after which GPipe is at its end. There GPipe has a best BLEU of "
        "99.2 ± 1.3, PipeOptim 83.5 ± 12.3 and PipeDream 75.2 ± 1.1 (seeds 0 to 2)",
    },
    best=True,
    printed=_printed,
)
