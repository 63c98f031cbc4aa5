"""What became of a claim."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Verdict:
    """What became of a claim: holds, holds partly, does not hold; and from what this is seen."""

    verdict: str
    why: str
