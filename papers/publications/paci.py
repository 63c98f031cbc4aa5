"""PACI: the newest weights everywhere, with gradients accumulated over microbatches against staleness."""

from collections.abc import Mapping, Sequence

from papers.claims import DOES_NOT_HOLD, HOLDS, RankingClaim, Rule, Verdict
from papers.closed_forms import CLOSED, Position
from papers.difference import Relation
from papers.paper import Finding, Paper, Tables

_SYNC = "pipedream_flush"
_DEPTHS, _COUNTS = range(2, 17), range(1, 17)


def bound(depth: int, accumulated: int) -> int:
    """The most updates between a forward and its backward: ceil((D - 1) / a)."""
    return -(-(depth - 1) // accumulated)


def _verdicts(_tables: Tables) -> Mapping[str, Verdict]:
    closed = CLOSED["naive_async"]
    most = {(D, a): max(closed.forward(Position(r, D, a))[-1] for r in range(D)) for D in _DEPTHS for a in _COUNTS}
    kept = all(found <= bound(*key) for key, found in most.items())
    attained = all(found == bound(*key) for key, found in most.items())
    text = "closed form of `naive_async`, which every run checks, D = 2 to 16 and a = 1 to 16"
    if attained:
        text += "; stage 0 attains the bound"
    versions = {closed.versions(Position(r, D, a)) for D in _DEPTHS for a in _COUNTS for r in range(D)}
    return {
        "bound": Verdict(HOLDS if kept else DOES_NOT_HOLD, [text]),
        "one_version": Verdict(HOLDS if versions == {1} else DOES_NOT_HOLD, ["the same closed form"]),
    }


_RULES: Mapping[str, Sequence[Rule]] = {
    "same_perplexity": [RankingClaim("accumulation", "microbatches=8", Relation.LIKE, (_SYNC,), "perplexity")],
    "accumulation_helps": [
        RankingClaim("accumulation", "microbatches=8", Relation.BETTER, ("microbatches=1",), "perplexity")
    ],
}


PAPER = Paper(
    name="paci",
    short="PACI",
    citation="Elam, Rahimi, Mendelson, Baskin: Breaking the Bubble: Asynchronous Pipeline Parallel Training with "
    "Bounded Weight Inconsistency, 2026 (arXiv 2606.07881)",
    about="PACI reads the newest weights everywhere, without stashing, and accumulates gradients over a microbatches "
    "to bound the delay.",
    findings=(
        Finding("The bounds on delay and memory hold.", {"bound": "holds", "one_version": "holds"}),
        Finding(
            "Accumulation helps, but with eight microbatches the perplexity is still above that of 1F1B with a flush.",
            {"accumulation_helps": "seen", "same_perplexity": "not seen"},
        ),
    ),
    provenance="The algorithm is from the authors' code, and the recipe and the numbers are from a summary, because "
    "the paper itself was not available. It reports the same perplexity 1.69 and 1.41 times sooner than under 1F1B "
    "with a flush, with minibatches of 128 and 256.",
    verdicts=_verdicts,
    rules=_RULES,
    tried={
        "same_perplexity": "a learning rate of 0.003. There the loss with a = 8 is 2.47, and 2.36 with a flush (three "
        "seeds), perplexities of 11.8 and 10.6",
    },
)
