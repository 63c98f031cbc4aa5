"""What `pipetrain compare` says of its own work: what it will do, how far it has come, and the time left."""

import sys
import time
from itertools import product

from pipetrain.reporting.comparison.contenders import RATE, Contender
from pipetrain.runner.terminal.text_table import counted
from pipetrain.runner.tracking.progress import counting

_LINE_SECONDS = 30.0
"""Seconds between lines if there is no terminal."""


def outlook(
    first: Contender, count: int, *, seeds: int, tuning_seeds: int, jobs: int, minutes: float | None
) -> list[str]:
    """Lines on what a comparison will do, and about how long it will take if no run has ended yet.

    Args:
        first: of the contenders, which stands for all.
        count: of them.
        seeds: number of reported seeds.
        tuning_seeds: number of seeds of each trial.
        jobs: number of runs at a time.
        minutes: after which runs are stopped; None for no limit.
    """
    candidates = len(list(product(*first.grid.axes)))
    tuning = candidates * tuning_seeds if candidates > 1 else 0
    least = "at least " if first.grid.extends else ""
    runs = count * (tuning + seeds)
    of_each = f"{tuning} to tune it, then " * (tuning > 0) + counted(seeds, "seed", "seeds")
    seconds = runs * first.estimated_s / jobs
    took = f"about {duration(seconds)} by the size of the model"
    if minutes is not None and 60 * minutes < seconds:
        took += f", and --minutes {minutes:g} ends it before; fewer --seeds or --tune {RATE}=VALUE take less"
    return [
        f"{counted(count, 'configuration', 'configurations')}, {least}{counted(runs, 'run', 'runs')} of {first.steps} "
        f"steps, {jobs} at a time: of each {of_each}",
        took,
    ]


def duration(seconds: float) -> str:
    """A time in a suitable unit."""
    for unit, size in (("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}" if seconds >= 10 * size else f"{seconds / size:.1f} {unit}"
    return f"{max(0.0, seconds):.0f} s"


class Progress:
    """The run that is going on, and the time left: a bar on the terminal, if there is one, else a line now and then."""

    def __init__(self) -> None:
        self._bar = counting("", 1)
        self._bar.bar_format = "{desc} |{bar}| {postfix}"
        self._line_at = time.monotonic()

    def show(self, ended: int, total: int, newest: str, left_s: float) -> None:
        """Shows how many runs have ended, which one was started last, and the seconds left."""
        text = f"{ended} of {total} runs have ended; {newest}"
        left = f"about {duration(left_s)} left"
        if not self._bar.disable:
            self._bar.total, self._bar.n = total, ended
            self._bar.set_description_str(text, refresh=False)
            self._bar.set_postfix_str(left)
        elif time.monotonic() - self._line_at >= _LINE_SECONDS:
            self._line_at = time.monotonic()
            print(f"{text}; {left}", file=sys.stderr, flush=True)

    def close(self) -> None:
        """Takes the bar off the terminal."""
        self._bar.close()
