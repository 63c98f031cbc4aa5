"""What became of a claim."""

from dataclasses import dataclass

NOT_TESTED = "not tested here"


@dataclass(frozen=True)
class Verdict:
    """What became of a claim: holds, holds partly, does not hold, or not tested here; and from what this is seen."""

    verdict: str
    why: str
