"""V- and I-TiMePReSt: a paper of figures and rankings; its formula and the staleness of its schedules."""

import math
from collections.abc import Mapping
from itertools import pairwise

from pipetrain.reproduce.comparison import Comparison, Value
from pipetrain.reproduce.difference import Relation
from pipetrain.reproduce.orders import Order
from pipetrain.reproduce.paper import Paper
from pipetrain.reproduce.published import Tables
from pipetrain.reproduce.verdict import Verdict
from pipetrain.theory.closed_forms import CLOSED, Position
from pipetrain.tracking.throughput import PREDICTED

_DRAWN, _MEASURED = 4, 2
"""Stages of figure 2, and of the experiments."""


def _recomputed(_tables: Tables) -> Mapping[str, Value]:
    return {"influence_fresh": math.exp(0), "factor_most": 2 - 1 / math.exp(0)}


def _exact(tables: Tables) -> list[Comparison]:
    stated, first = tables["stated"], Position(0, _DRAWN, 2)
    forms = CLOSED["v_timeprest"]
    note = (
        "a stage reads its newest weights, but updates of earlier minibatches follow before this one's own: "
        "D - 1 - r updates at stage r, as under plain asynchrony; only a pipeline of one stage has none"
    )
    versions = max(CLOSED["v_timeprest"].versions(Position(r, _DRAWN, 2)) for r in range(_DRAWN))
    return [
        Comparison(
            f"V-TiMePReSt: updates between a forward's weights and its own update, first of {_DRAWN} stages",
            "§ III-A",
            stated.row(name="v_staleness")["value"],
            forms.forward(first)[-1],
            note=note,
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
    behind = CLOSED["v_timeprest"].forward(Position(0, _DRAWN, 2))[-1]
    return {
        "v_staleness_free": Verdict(
            "does not hold",
            f"each forward reads the newest weights, but on the first of four stages {behind} updates follow before "
            "that minibatch's own",
        ),
        "v_least_memory": Verdict("holds", f"versions of weights on the two stages of figure 6: {shown}"),
        "i_memory": Verdict(
            "holds partly",
            f"more on the first stage and fewer on the last, so it depends on where the weights are; versions on the "
            f"two stages of figure 6: {shown}",
        ),
        "factor": Verdict(
            "holds partly",
            "(2 - 1/f) follows from the assumption of (12), and is at most 1; but beyond δ = ln 2 / λ it is below 0 "
            "and reverses their sign, and it scales toward 0, which is toward the newest weights only by chance",
        ),
    }


_VARIANTS = ("timeprest", "v_timeprest", "i_timeprest")
_RANKED = ("i_timeprest", "timeprest", "v_timeprest", "pipedream")
"""The fastest first, as the text ranks them."""
_RULES = {
    "time_to_accuracy": [
        Order(figure, method, Relation.BETTER, (slower,), "predicted_target_s")
        for figure in ("fig3", "fig4")
        for method, slower in pairwise(_RANKED)
    ],
    "epochs_to_accuracy": [
        Order(figure, "i_timeprest", relation, others, "target_epochs")
        for figure in ("fig3", "fig4")
        for relation, others in ((Relation.LIKE, ("pipedream",)), (Relation.BETTER, ("timeprest", "v_timeprest")))
    ],
    "epochs_per_hour": [
        Order(figure, method, Relation.BETTER, ("pipedream",), PREDICTED)
        for figure in ("fig3", "fig4", "fig9", "fig10")
        for method in _VARIANTS
    ]
    + [
        Order(figure, "v_timeprest", Relation.LIKE, ("timeprest", "i_timeprest"), PREDICTED)
        for figure in ("fig3", "fig4", "fig9", "fig10")
    ],
}


PAPER = Paper(
    name="timeprest",
    citation="Dutta, Chaki, De: Memory Efficient and Staleness Free Pipeline Parallel DNN Training Framework with "
    "Improved Convergence Speed, 2025",
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
)
