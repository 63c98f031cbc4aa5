"""What became of a claim, in words that say how far it was tested."""

from collections.abc import Sequence
from dataclasses import dataclass

NOT_TESTED = "not tested here"
UNDECIDED = "undecided"
HOLDS, HOLDS_PARTLY, DOES_NOT_HOLD = "holds", "holds partly", "does not hold"
"""Of arithmetic: formulas, closed forms of schedules and memory, counts on the models themselves."""


@dataclass(frozen=True)
class Verdict:
    """What became of a claim.

    Attributes:
        verdict: one of the words above, or `seen`, of what was trained or timed.
        why: from what this is seen, a line each.
    """

    verdict: str
    why: Sequence[str]

    @property
    def tested(self) -> bool:
        """Whether anything was found out, if only that the runs do not decide."""
        return self.verdict != NOT_TESTED


def seen(holding: int, refuted: int, of: int, scale: str, *, superlative: bool = False) -> str:
    """The verdict of runs.

    Args:
        holding: Number of parts of the claim that they show.
        refuted: Number of parts of which they show the contrary.
        of: Number of parts that were tried.
        scale: `small` or `full`.
        superlative: whether the claim puts one before all others, so that one part can refute it and none alone bear
            it out.
    """
    where = f"at {scale} scale"
    if refuted and (superlative or not holding):
        return f"not seen {where}"
    if holding == of:
        return f"seen {where}"
    return f"seen in part {where}" if holding and not superlative else UNDECIDED
