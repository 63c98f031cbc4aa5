"""How long a run is, and how much longer it will take."""

from collections.abc import Sequence
from dataclasses import dataclass

from pipetrain.tracking.records import Record


@dataclass(frozen=True)
class RunLength:
    """How long a run is.

    Attributes:
        steps: of the whole run.
        steps_per_epoch: minibatches of an epoch.
        evaluations: the steps after which the evaluation set is passed.
    """

    steps: int
    steps_per_epoch: int
    evaluations: Sequence[int] = ()

    @property
    def epochs(self) -> int:
        """How many there are, a last one that is cut short included."""
        return -(-self.steps // self.steps_per_epoch)

    def steps_of(self, epoch: int) -> int:
        """How many steps an epoch has, which counts from 1."""
        return min(self.steps_per_epoch, self.steps - (epoch - 1) * self.steps_per_epoch)


_TELLING_STEPS, _TELLING_SECONDS = 3, 10.0
"""What tells how long an epoch takes; the first steps of a run take longer than others."""


class TimeLeft:
    """How much longer a run will take, by the steps and the evaluations seen so far."""

    def __init__(self, length: RunLength, step: int) -> None:
        self._length = length
        self._first = self._step = step
        self._train_s = 0.0
        self._eval_s = 0.0

    def add(self, record: Record) -> None:
        """Takes a record into account."""
        if record["kind"] == "interval":
            self._step = record["step"]
            self._train_s += record["train_s"]
        elif record["kind"] == "eval":
            self._eval_s = record["eval_s"]

    def seconds(self) -> float:
        """Seconds for the steps that are left and, once one has been seen, the evaluations, without checkpoints."""
        evaluations = sum(step >= self._step for step in self._length.evaluations)
        return (self._length.steps - self._step) * self._of_step() + evaluations * self._eval_s

    def of_epoch(self) -> float | None:
        """Seconds that the steps of an epoch take; None before a few steps tell."""
        tells = self._step - self._first >= _TELLING_STEPS or self._train_s >= _TELLING_SECONDS
        return self._length.steps_of(1) * self._of_step() if tells else None

    def _of_step(self) -> float:
        return self._train_s / max(1, self._step - self._first)
