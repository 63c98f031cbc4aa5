"""V- and I-TiMePReSt: a paper of figures and rankings; its formula and the staleness of its schedules."""

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise

from papers.claims import DOES_NOT_HOLD, HOLDS, HOLDS_PARTLY, Control, Distinct, RankingClaim, Rule, Verdict
from papers.closed_forms import CLOSED, Position
from papers.difference import Relation
from papers.paper import Comparison, Finding, Paper, Tables, Value
from papers.planned_reads import behind_newest
from pipetrain.runner.tracking.throughput import PREDICTED

_DRAWN, _MEASURED = 4, 2
"""Stages of figure 2, and of the experiments."""


def _recomputed(_tables: Tables) -> Mapping[str, Value]:
    return {"influence_fresh": math.exp(0), "factor_most": 2 - 1 / math.exp(0)}


def _exact(tables: Tables) -> list[Comparison]:
    stated = tables["stated"]
    versions = max(CLOSED["v_timeprest"].versions(Position(r, _DRAWN, 2)) for r in range(_DRAWN))
    return [
        Comparison(
            f"V-TiMePReSt: updates by which a pass reads older weights than its stage's newest, {_DRAWN} stages",
            "§ III-A",
            stated.row(name="v_staleness")["value"],
            behind_newest("v_timeprest", _DRAWN, 2),
        ),
        Comparison(
            "V-TiMePReSt: weight versions of a stage, at most",
            "§ III-A",
            stated.row(name="v_versions")["value"],
            versions,
        ),
    ]


def _verdicts(_tables: Tables) -> Mapping[str, Verdict]:
    stages = [Position(r, _MEASURED, 2) for r in range(_MEASURED)]
    methods = ("v_timeprest", "timeprest", "i_timeprest", "pipedream")
    held = {name: [CLOSED[name].versions(at) for at in stages] for name in methods}
    shown = "; ".join(f"{name} {' and '.join(map(str, counts))}" for name, counts in held.items())
    behind = [CLOSED["v_timeprest"].forward(Position(r, _DRAWN, 2))[-1] for r in range(_DRAWN)]
    newest = behind_newest("v_timeprest", _DRAWN, 2) == 0
    return {
        "v_staleness_free": Verdict(
            "holds by the paper's definition" if newest else DOES_NOT_HOLD,
            [
                "every pass of every stage reads the newest weights that the stage has, as § III-A defines it: seen in "
                f"the operation lists of {_DRAWN} stages",
                "by PipeDream's and PipeOptim's definition, the updates between a forward's weights and the "
                f"minibatch's own update, there are D - 1 - r at stage r, as under plain asynchrony: "
                f"{', '.join(map(str, behind))}",
            ],
        ),
        "v_least_memory": Verdict(HOLDS, [f"versions of weights on the two stages of figure 6: {shown}"]),
        "i_memory": Verdict(
            HOLDS_PARTLY,
            [
                "more on the first stage and fewer on the last, so it depends on where the weights are; versions on "
                f"the two stages of figure 6: {shown}"
            ],
        ),
        "factor": Verdict(
            HOLDS_PARTLY,
            [
                "(2 - 1/f) follows from the assumption of (12), and is at most 1; but beyond δ = ln 2 / λ it is below "
                "0 and reverses their sign, and it scales toward 0, which is toward the newest weights only by chance"
            ],
        ),
    }


_BEHIND_I = ("timeprest", "v_timeprest", "pipedream")
"""The methods that the text ranks behind I-TiMePReSt, the fastest first."""
_I_TIMEPREST = {
    "fig3": ("staleness_decay=0.01", "staleness_decay=0.1"),  # the paper does not give λ
    **{figure: ("i_timeprest",) for figure in ("fig4", "fig9", "fig10")},
}
"""Figure -> its groups of I-TiMePReSt."""
_TO_TARGET = ("fig3", "fig4")
_SAME_EPOCHS = 0.5
"""Difference of mean epochs to a target that counts as none: a run is evaluated after whole epochs."""


def _distinct(figure: str) -> tuple[Control, ...]:
    why = "the first of two stages has one layer with weights, whose backward reads none"
    return tuple(Distinct(figure, ("v_timeprest", group), why) for group in _I_TIMEPREST[figure])


def _epochs_to_accuracy(figure: str, first: str, relation: Relation, *others: str) -> RankingClaim:
    within = _SAME_EPOCHS if relation is Relation.LIKE else None
    return RankingClaim(figure, first, relation, others, "target_epochs", within=within, controls=_distinct(figure))


_RULES: Mapping[str, Sequence[Rule]] = {
    # what decides is how long activations take on a network, and the small scale has none
    "time_to_accuracy": [
        RankingClaim(
            figure, method, Relation.BETTER, (slower,), "predicted_target_s", full=True, controls=_distinct(figure)
        )
        for figure in _TO_TARGET
        for group in _I_TIMEPREST[figure]
        for method, slower in pairwise((group, *_BEHIND_I))
    ],
    "epochs_to_accuracy": [
        _epochs_to_accuracy(figure, group, relation, *others)
        for figure in _TO_TARGET
        for group in _I_TIMEPREST[figure]
        for relation, others in ((Relation.LIKE, ("pipedream",)), (Relation.BETTER, ("timeprest", "v_timeprest")))
    ],
    "v_more_epochs": [_epochs_to_accuracy(figure, "v_timeprest", Relation.WORSE, "timeprest") for figure in _TO_TARGET],
    "epochs_per_hour": [
        RankingClaim(figure, method, Relation.LIKE, others, PREDICTED)
        for figure, groups in _I_TIMEPREST.items()
        for method, others in (("v_timeprest", ("timeprest", *groups)), ("timeprest", ("v_timeprest",)))
    ]
    + [
        RankingClaim(figure, method, Relation.BETTER, ("pipedream",), PREDICTED, full=True)
        for figure, groups in _I_TIMEPREST.items()
        for method in ("timeprest", "v_timeprest", *groups)
    ],
}


PAPER = Paper(
    name="timeprest",
    short="V-, I-TiMePReSt",
    citation="Dutta, Chaki, De: Memory Efficient and Staleness Free Pipeline Parallel DNN Training Framework with "
    "Improved Convergence Speed, 2025",
    about="V-TiMePReSt reads the newest weights only, and I-TiMePReSt scales the weights of a forward by their "
    "staleness for its backward; both are compared with TiMePReSt and PipeDream.",
    findings=(
        Finding(
            "V-TiMePReSt takes the least memory, and is free of staleness by the paper's own definition.",
            {"v_least_memory": "holds", "v_staleness_free": "holds by"},
        ),
        Finding(
            "I-TiMePReSt takes fewer epochs to a target than TiMePReSt, as in the paper; so does V-TiMePReSt, unlike"
            " in the paper.",
            {"epochs_to_accuracy": "seen in part", "v_more_epochs": "not seen"},
        ),
        Finding("Claims on time were not tested.", {"time_to_accuracy": "not tested", "equal_time": "not tested"}),
    ),
    recomputed=_recomputed,
    exact=_exact,
    remarks=(
        "The paper prints no table and no numbers of its figures, and gives no hyper-parameter: neither λ nor "
        "optimizer, learning rate, batch size, or number of microbatches.",
        "§ IV says that I-TiMePReSt takes more memory than TiMePReSt, the conclusion that both are comparable.",
        "The text describes PipeDream with vertical weight stashing; PipeDream's own default has none (its § 3.3).",
        "The figures have no error bars, and the text gives neither seeds nor the accuracies that were reached.",
    ),
    verdicts=_verdicts,
    rules=_RULES,
    superlatives=("time_to_accuracy",),
    tried={
        "v_more_epochs": "lower rates, with `timeprest/fig3`'s other settings at the small scale and seeds 0 to 3. At "
        "0.03 V-TiMePReSt takes 5.25 ± 0.50 epochs and TiMePReSt 5.50 ± 0.58. At 0.01 neither reaches 75 % top-1 in "
        "ten epochs; they end at 74.0 ± 0.5 and 73.9 ± 0.3. With the settings of `timeprest/fig4` at 0.01, "
        "under seeds 0 and 1, TiMePReSt reaches 80 % after 7 and 5 epochs, and V-TiMePReSt after 5 and 6",
    },
)
