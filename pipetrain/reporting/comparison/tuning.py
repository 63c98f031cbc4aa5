"""The search that tunes a configuration: a grid, whose learning rates go on while the best one is at an end."""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

Candidate = tuple[str, ...]
"""Tuned settings as words of the command line, such as `("optimizer.lr=0.01",)`: a value of each."""

FACTOR = 3.0
"""Ratio of neighboring learning rates of a grid that was not given."""
_MOST_RATES = 9


@dataclass(frozen=True)
class Grid:
    """What is tuned.

    Attributes:
        axes: words of each setting, one for each of its values, such as `("optimizer.lr=0.1", "optimizer.lr=0.3")`.
        extends: True to try further values of the first setting, a number, while the best is the lowest or highest.
    """

    axes: tuple[tuple[str, ...], ...]
    extends: bool = False


def around(setting: str, value: float) -> tuple[str, ...]:
    """Words for a configured value, which wins among equals, and one on each side."""
    return tuple(f"{setting}={value * ratio:.3g}" for ratio in (1, 1 / FACTOR, FACTOR))


@dataclass(frozen=True)
class Search:
    """State of a search.

    Attributes:
        missing: candidates to try next; empty if the search has ended.
        best: the chosen candidate of a search that has ended; None if all diverged.
        losses: of the candidates that were tried.
    """

    missing: Sequence[Candidate] = ()
    best: Candidate | None = None
    losses: Mapping[Candidate, float] = field(default_factory=dict)

    @property
    def progress(self) -> str:
        """How many of the candidates known so far were tried, and the best of them."""
        best = min(self.losses, key=self.losses.__getitem__, default=None)
        leads = f"; the best so far is {' '.join(best)}" if best is not None and self.losses[best] < math.inf else ""
        return f"{len(self.losses)} of {len(self.losses) + len(self.missing)} settings were tried{leads}"


def search(grid: Grid, loss_of: Callable[[Candidate], float | None]) -> Search:
    """What the candidates tried so far lead to: the same losses lead to the same search, so it can be continued.

    Args:
        grid: all its combinations are tried. If all diverge, lower values of the first setting are, too.
        loss_of: the loss of a candidate, infinite if it diverged; None if it has not run.
    """
    candidates = list(itertools.product(*grid.axes))
    if len(candidates) == 1:
        return Search(best=candidates[0])
    while True:
        losses = {each: loss for each in candidates if (loss := loss_of(each)) is not None}
        if missing := [each for each in candidates if each not in losses]:
            return Search(missing, losses=losses)
        best = min(candidates, key=losses.__getitem__)
        chosen = best if losses[best] < math.inf else None
        further = _beyond(grid, chosen, candidates)
        if further is None:
            return Search(best=chosen, losses=losses)
        candidates.append(further)


def _beyond(grid: Grid, best: Candidate | None, tried: Sequence[Candidate]) -> Candidate | None:
    """The candidate to try beyond the best one, which has the lowest or highest rate; below all if all diverged."""
    if not grid.extends:
        return None
    best = best or min(tried, key=lambda each: _number(each[0]))
    rate, rates = _number(best[0]), {_number(each[0]) for each in tried}
    if len(rates) == _MOST_RATES or rate not in (min(rates), max(rates)):
        return None
    further = rate / FACTOR if rate == min(rates) else rate * FACTOR
    return (f"{best[0].partition('=')[0]}={further:.3g}", *best[1:])


def _number(word: str) -> float:
    return float(word.partition("=")[2])
