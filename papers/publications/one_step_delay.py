"""One-Step Gradient Delay is Not a Barrier: a delay of one update by optimizer, and error feedback against it."""

from collections.abc import Mapping, Sequence

from papers.claims import DOES_NOT_HOLD, HOLDS, ContrastClaim, RankingClaim, Rule, Verdict
from papers.closed_forms import CLOSED, Position
from papers.difference import Relation
from papers.paper import Finding, Paper, Tables

_OPTIMIZERS = ("adamw", "muon", "soap")
_SYNC, _DELAYED, _CORRECTED = "pipedream_flush", "pipedream_2bw", "error_feedback=1.0"


def _verdicts(_tables: Tables) -> Mapping[str, Verdict]:
    stages = [Position(r, D, N) for D in range(2, 17) for N in (D, 2 * D) for r in range(D)]
    closed = CLOSED["pipedream_2bw"]
    same = all(closed.forward(at) == closed.backward(at) == [1] and closed.versions(at) == 2 for at in stages)
    text = "the closed form of `pipedream_2bw`, which every run checks, is one update on all stages, D = 2 to 16"
    return {"same_delay": Verdict(HOLDS if same else DOES_NOT_HOLD, [text])}


def _loss(experiment: str, first: str, relation: Relation, other: str) -> RankingClaim:
    return RankingClaim(experiment, first, relation, (other,), "loss")


_RULES: Mapping[str, Sequence[Rule]] = {
    "adamw_loses": [_loss("adamw", _DELAYED, Relation.WORSE, _SYNC)],
    "matrices_tolerate": [
        ContrastClaim("loss", ("adamw", _DELAYED, _SYNC), (each, _DELAYED, _SYNC)) for each in ("muon", "soap")
    ],
    "feedback_helps": [_loss(each, _CORRECTED, Relation.BETTER, _DELAYED) for each in _OPTIMIZERS],
    "feedback_closes": [_loss(each, _CORRECTED, Relation.LIKE, _SYNC) for each in _OPTIMIZERS],
}


def _printed(tables: Tables, experiment: str) -> Mapping[str, str]:
    row = tables["losses"].row(model="SmolLM-2 360M", optimizer=experiment)
    return {_SYNC: row["sync"], _DELAYED: row["delayed"], _CORRECTED: row["error_feedback"]}


PAPER = Paper(
    name="one_step_delay",
    short="One-step delay",
    citation="Zmushko, Petrov, Abdullaev, Khrushchev, Horváth: One-Step Gradient Delay is Not a Barrier for "
    "Large-Scale Asynchronous Pipeline Parallel LLM Pretraining, ICML 2026 (arXiv 2606.30634)",
    about="A gradient that is one step late is said to hurt AdamW, to hurt Muon and SOAP less, and error feedback to "
    "close the gap.",
    findings=(
        Finding("The delay raises AdamW's loss.", {"adamw_loses": "seen"}),
        Finding(
            "Error feedback lowers the loss of Muon and SOAP under the delay, but does not close the gap of AdamW "
            "and SOAP.",
            {"feedback_helps": "seen in part", "feedback_closes": "not seen"},
        ),
        Finding("Whether Muon and SOAP lose less than AdamW is undecided.", {"matrices_tolerate": "undecided"}),
    ),
    provenance="Formulas are from code of other authors (RamTorch). Numbers and claims are from summaries, because the "
    "paper itself was not available.",
    verdicts=_verdicts,
    rules=_RULES,
    tried={
        "feedback_closes": "a learning rate of 0.003 (seeds 1 to 3). There AdamW with error feedback ends at a loss of "
        "2.446 ± 0.012, and without delay at 2.360 ± 0.007, a gap of 0.086 (95 % 0.039 to 0.133) at a margin of "
        "0.071. SOAP ends at 2.281 ± 0.005 and 2.237 ± 0.005, a gap of 0.044 (95 % 0.021 to 0.066), within "
        "the margin of 0.067",
    },
    printed=_printed,
)
