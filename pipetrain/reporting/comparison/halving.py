"""Successive halving (Jamieson & Talwalkar 2016, algorithm 1): which settings to try next, by the losses so far."""

import itertools
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

Candidate = tuple[str, ...]
"""Tuned settings as words of the command line, such as `("optimizer.lr=0.01",)`: a value of each axis."""
Trial = tuple[Candidate, int]
"""A candidate, and the steps that it is trained for."""

FACTOR = 3.0
"""Ratio of neighboring learning rates of a grid that was not given."""
_MOST_MORE = 6
"""Values at most by which an axis is extended."""


@dataclass(frozen=True)
class Axis:
    """A setting that is tuned.

    Attributes:
        values: as the command line takes them.
        extends: True to try further values while the best one is the lowest or highest; they are then numbers.
    """

    setting: str
    values: tuple[str, ...]
    extends: bool = False

    @property
    def name(self) -> str:
        """The setting without Hydra's leading `+` or `++`, as in `+model.width`."""
        return self.setting.lstrip("+")

    @property
    def words(self) -> list[str]:
        """Words of the command line, one for each value."""
        return [f"{self.setting}={value}" for value in self.values]

    @property
    def section(self) -> str:
        """The first part of its name, such as `optimizer`."""
        return self.name.partition(".")[0]

    @classmethod
    def around(cls, setting: str, value: float) -> "Axis":
        """Three values around one that is configured, and more if the best lies at the end."""
        return cls(setting, tuple(_text(value * FACTOR**power) for power in (-1, 0, 1)), extends=True)

    def beyond(self, value: str, tried: Collection[str], *, lower: bool) -> str | None:
        """The next value past the end of those that were tried, if `value` is at an end and more may be tried.

        Args:
            value: the best one so far.
            tried: all so far.
            lower: True to go only to lower values.
        """
        if not self.extends or len(tried) >= len(self.values) + _MOST_MORE:
            return None
        numbers, best = [float(each) for each in tried], float(value)
        if best == max(numbers) and not lower:
            return _text(best * FACTOR)
        return _text(best / FACTOR) if best == min(numbers) else None


@dataclass(frozen=True)
class Search:
    """State of a search.

    Attributes:
        trials: to run next; empty if the search has ended.
        best: the chosen candidate of a search that has ended; None if all diverged.
        losses: of the trials that have led here.
    """

    trials: Sequence[Trial] = ()
    best: Candidate | None = None
    losses: Mapping[Trial, float] = field(default_factory=dict)

    @property
    def ended(self) -> bool:
        """True if there is nothing left to try."""
        return not self.trials

    @property
    def at_end(self) -> list[str]:
        """The words of the best candidate whose numbers are the lowest or highest of three or more that were tried."""
        found = []
        for index, word in enumerate(self.best or ()):
            values = {value for each, _ in self.losses if (value := _number(each[index])) is not None}
            if len(values) > 2 and _number(word) in (min(values), max(values)):
                found.append(word)
        return found

    @property
    def without_effect(self) -> bool:
        """True if the losses tell no candidate from another: those trained for as long have the same finite loss."""
        by_length: dict[int, list[float]] = {}
        for (_, steps), loss in self.losses.items():
            by_length.setdefault(steps, []).append(loss)
        return all(len(losses) > 1 and _are_equal(losses) for losses in by_length.values()) and bool(by_length)


def _are_equal(losses: Sequence[float]) -> bool:
    """True if all are one finite number."""
    return len(set(losses)) == 1 and math.isfinite(losses[0])


def rungs_of(axes: Sequence[Axis], steps: int) -> list[int]:
    """Steps of each round: the last one has all `steps`, and each earlier one half of the next."""
    count = math.prod(len(axis.values) for axis in axes)
    rounds = max(1, math.ceil(math.log2(count)))
    return sorted({max(1, steps >> number) for number in range(rounds)})


def search(axes: Sequence[Axis], rungs: Sequence[int], loss_of: Callable[[Trial], float | None]) -> Search:
    """What the trials so far lead to: the same losses lead to the same trials, so that a search can be continued.

    Of each round the better half goes on to the next, which trains longer, and all of them if they are equally good, as
    where none has learned yet; if all that went on diverge there, the others follow. While the best candidate of a
    round lies at the end of an axis that extends, the next value is tried, too.

    Args:
        axes: the settings, and the values to begin with.
        rungs: steps of each round, ascending.
        loss_of: the loss of a trial, infinite if it diverged; None if it has not run.
    """
    rivals = list(itertools.product(*(axis.words for axis in axes)))
    if len(rivals) == 1 and not any(axis.extends for axis in axes):
        return Search(best=rivals[0])
    losses: dict[Trial, float] = {}

    def missing(steps: int) -> list[Trial]:
        for rival in rivals:
            if (loss := loss_of((rival, steps))) is not None:
                losses[rival, steps] = loss
        return [(rival, steps) for rival in rivals if (rival, steps) not in losses]

    others: list[Candidate] = []
    for steps in rungs:
        if trials := missing(steps):
            return Search(trials, losses=losses)
        while (further := _further(axes, rivals, others, losses, steps)) is not None:
            rivals.append(further)
            if trials := missing(steps):
                return Search(trials, losses=losses)
        ranked = sorted(rivals, key=lambda rival: losses[rival, steps])  # equal ones in their order
        ranked = [rival for rival in ranked if losses[rival, steps] < math.inf]
        undecided = steps != rungs[-1] and _are_equal([losses[rival, steps] for rival in rivals])
        half = len(rivals) if undecided else math.ceil(len(rivals) / 2)
        rivals, others = ranked[:half], ranked[half:]
        if len(rivals) < 2 and not others:
            break
    return Search(best=rivals[0] if rivals else None, losses=losses)


def _further(
    axes: Sequence[Axis],
    rivals: Sequence[Candidate],
    others: Sequence[Candidate],
    losses: Mapping[Trial, float],
    steps: int,
) -> Candidate | None:
    """Another candidate for a round whose candidates have all run.

    If all of these diverged, it is the best of `others`, which the last round had left out, or else one with a lower
    value; if not, the one beyond the best candidate, if that one has the last value that was tried of an axis.
    """
    reached = [losses[rival, steps] for rival in rivals]
    if len(rivals) > 1 and _are_equal(reached):
        return None
    diverged = min(reached) == math.inf
    if diverged and (left := [other for other in others if other not in rivals]):
        return left[0]
    lowest = min(rivals, key=lambda rival: [_number(word) or 0.0 for word in rival])
    best = lowest if diverged else rivals[reached.index(min(reached))]
    for index, axis in enumerate(axes):
        tried = {_value(each[index]) for each, _ in losses}
        if further := axis.beyond(_value(best[index]), tried, lower=diverged):
            return (*best[:index], f"{axis.setting}={further}", *best[index + 1 :])
    return None


def _value(word: str) -> str:
    return word.partition("=")[2]


def _text(value: float) -> str:
    return f"{value:.3g}"


def _number(word: str) -> float | None:
    try:
        return float(_value(word))
    except ValueError:
        return None
