"""AsyncPP: Nesterov's momentum against staleness in a pipeline."""

from collections.abc import Mapping, Sequence

from papers.claims import DOES_NOT_HOLD, HOLDS_PARTLY, RankingClaim, Rule, Verdict
from papers.closed_forms import CLOSED, Position
from papers.difference import Relation
from papers.paper import Finding, Paper, Tables

_SYNC, _ASYNC = "pipedream_flush", "pipedream"


def _verdicts(_tables: Tables) -> Mapping[str, Verdict]:
    every = [Position(r, P, K) for P in range(2, 17) for K in range(1, 9) for r in range(P)]
    found = [(at, (2 * at.behind + 1) // (2 * at.N), CLOSED["pipedream"].forward(at)) for at in every]
    least = all(given == delays[0] for _, given, delays in found)
    exact = all(delays == [given] for at, given, delays in found if at.N == 1)
    text = (
        "compared with the closed form of `pipedream`, which every run checks, P = 2 to 16 and K = 1 to 8: exact for "
        "K = 1, and the delay of the least delayed microbatch for more"
    )
    return {"delays": Verdict(HOLDS_PARTLY, [text]) if least and exact else Verdict(DOES_NOT_HOLD, [])}


_RULES: Mapping[str, Sequence[Rule]] = {
    "below_synchronous": [
        RankingClaim("nadam", _ASYNC, Relation.BETTER, (_SYNC,), "perplexity", against=other)
        for other in ("adamw", "nadam")
    ],
    "below_asynchronous": [
        RankingClaim("nadam", _ASYNC, Relation.BETTER, (_ASYNC,), "perplexity", against=other)
        for other in ("adamw", "corrected")
    ],
}


def _printed(tables: Tables, experiment: str) -> Mapping[str, str]:
    if experiment != "nadam":
        return {}
    return {_ASYNC: tables["stated"].row(name="wikitext103_asyncpp")["value"]}


PAPER = Paper(
    name="asyncpp",
    short="AsyncPP",
    citation="Ajanthan, Ramasinghe, Zuo, Avraham, Long: Nesterov Method for Asynchronous Pipeline Parallel "
    "Optimization, ICML 2025 (arXiv 2505.01099)",
    about="AsyncPP trains PipeDream with NAdam and a first β of 0.99, whose look-ahead is to make up for the delay.",
    findings=(
        Finding(
            "Here it ends at a much higher perplexity than synchronous training, unlike in the paper.",
            {"below_synchronous": "not seen"},
        ),
        Finding("Whether it is below PipeDream with AdamW is undecided.", {"below_asynchronous": "undecided"}),
    ),
    provenance="Formulas and hyperparameters are from the authors' code, the claims from the abstract, and the numbers "
    "from a summary, because the paper itself was not available. The optimizer of its baselines is not known here; "
    "AdamW is a choice. It reports, on WikiText-103, a perplexity of 27.72, and of 30.63 for GPipe.",
    verdicts=_verdicts,
    rules=_RULES,
    tried={
        "below_synchronous": "a learning rate of 0.001 for NAdam. There PipeDream ends at a perplexity of 17.8 ± 4.2 "
        "and synchronous training at 11.86 ± 0.11 (seeds 1 to 3)",
    },
    printed=_printed,
)
