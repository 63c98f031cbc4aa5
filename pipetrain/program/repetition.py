"""The rate of a play in the long run, from a state of it that comes back."""

from collections import defaultdict
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from pipetrain.program.event_graph import Numbers

_MOST_STEPS = 1_000_000
"""Steps after which nobody waits any longer for a state to come back; they take some seconds."""
_FEWEST_TURNS = 4
"""Turns that are played however many steps they take."""
_EQUAL = 1e-9
"""Two states are one where their times differ by less, relative to a turn."""
_COMPARED = 32
"""Earlier states that a state is compared with."""


class Repetition(NamedTuple):
    """What a play comes to in the long run.

    Attributes:
        turn_s: the time of a turn.
        busy: of each task, the share of the time in which it computes, slowly or fast.
    """

    turn_s: float
    busy: list[float]


@dataclass(frozen=True)
class PlayState:
    """A play when a turn begins; what is under way then decides all that follows.

    Attributes:
        turn: its number.
        now: the time.
        steps: what it took to play so far.
        busy: of each task, for how long it has computed by then.
        under_way: what is, whatever time it has left.
        left: these times, in the same order.
    """

    turn: int
    now: float
    steps: int
    busy: Numbers
    under_way: Hashable
    left: Numbers

    def returns(self, later: "PlayState") -> bool:
        """Whether a later one, with the same things under way, is this one again."""
        turn_s = (later.now - self.now) / (later.turn - self.turn)
        return bool((np.abs(later.left - self.left) <= _EQUAL * turn_s).all())

    def until(self, later: "PlayState") -> Repetition:
        """The rate between the two."""
        busy = (later.busy - self.busy) / (later.now - self.now)
        return Repetition((later.now - self.now) / (later.turn - self.turn), busy.tolist())


def repetition_of(turns: Iterable[PlayState]) -> Repetition:
    """What an endless play comes to: the rate between two states that are one.

    Where none comes back in the time that there is, it is the mean of the second half.
    """
    seen: dict[Hashable, list[PlayState]] = defaultdict(list)
    played: list[PlayState] = []
    for state in turns:
        alike = seen[state.under_way]
        for earlier in reversed(alike[-_COMPARED:]):
            if earlier.returns(state):
                return earlier.until(state)
        alike.append(state)
        played.append(state)
        if state.steps > _MOST_STEPS and len(played) > _FEWEST_TURNS:
            break
    return played[len(played) // 2].until(played[-1])
