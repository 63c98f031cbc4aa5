"""Throughput and wall time of a run."""

import math
import time
from collections.abc import Callable, Mapping
from typing import Any

THROUGHPUTS = ("samples_per_second", "simulator_samples_per_second", "predicted_samples_per_second")
MEASURED, SIMULATOR, PREDICTED = THROUGHPUTS
"""Names of throughputs: measured, of the simulator, and predicted for the simulated pipeline."""


def in_tokens(name: str) -> str:
    """Name of the same throughput in tokens, which runs on text have in addition."""
    return name.replace("samples", "tokens")


ALL_THROUGHPUTS = (*THROUGHPUTS, *map(in_tokens, THROUGHPUTS))


class Throughput:
    """Samples per second over any steps of a run.

    A step lasts from the update before it to its own, on the last stage; the last step before a drain, until every
    stage has drained. Evaluations and checkpoints belong to no step.

    Args:
        samples: of the minibatch of a step, counted from 0; or its tokens.
        seconds: of the steps so far, NaN if unknown; `add` appends to them.
    """

    def __init__(self, samples: Callable[[int], int], seconds: list[float] | None = None) -> None:
        self._samples = samples
        self.seconds = [] if seconds is None else seconds

    def add(self, step: int, seconds: float) -> None:
        """Adds the time of a step, counted from 0; steps before it that have none stay unknown."""
        self.seconds += [math.nan] * (step - len(self.seconds)) + [seconds]

    def prolong(self, seconds: float) -> None:
        """Adds to the time of the last step."""
        self.seconds[-1] += seconds

    def train_s(self, first: int, last: int) -> float:
        """Seconds of the steps `first` to `last`, exclusive."""
        return sum(self.seconds[step] for step in self._known(first, last))

    def samples(self, first: int, last: int) -> int:
        """Samples of these steps."""
        return sum(map(self._samples, range(first, last)))

    def of(self, first: int, last: int) -> float | None:
        """Samples per second over these steps, as far as their times are known; None if none is."""
        samples = sum(map(self._samples, self._known(first, last)))
        seconds = self.train_s(first, last)
        return samples / seconds if seconds else None

    def of_run(self) -> float | None:
        """Samples per second over the steps after the first tenth, in which caches and pipelines warm up."""
        steps = len(self.seconds)
        return self.of(math.ceil(steps / 10), steps) or self.of(0, steps)

    def _known(self, first: int, last: int) -> list[int]:
        return [step for step in range(first, min(last, len(self.seconds))) if not math.isnan(self.seconds[step])]


class WallClock:
    """The wall time of a run, with the `fields` of its earlier parts, and the part that was not spent on training."""

    def __init__(self, earlier: Mapping[str, Any]) -> None:
        self._before: float = earlier.get("wall_s", 0.0)
        self._apart: dict[str, float] = {name: earlier.get(name, 0.0) for name in ("eval_s", "checkpoint_s")}
        self.start()

    def start(self) -> None:
        """Starts the clock; the time of earlier parts of the run counts."""
        self._began = time.perf_counter() - self._before

    @property
    def wall_s(self) -> float:
        """Wall-clock seconds of the run so far, earlier parts included."""
        return time.perf_counter() - self._began

    def spend(self, name: str, seconds: float) -> None:
        """Adds to `eval_s` or `checkpoint_s`."""
        self._apart[name] += seconds

    def fields(self) -> dict[str, float]:
        """`wall_s`, and `eval_s` and `checkpoint_s`, which are parts of it."""
        return {"wall_s": self.wall_s, **self._apart}
