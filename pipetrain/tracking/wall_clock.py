"""Where the wall time of a run goes."""

import time
from collections.abc import Mapping
from typing import Any


class WallClock:
    """The wall time of a run, its earlier parts included, and how much of it was spent on other things than training.

    Args:
        earlier: the `fields` of the parts before.
    """

    def __init__(self, earlier: Mapping[str, Any]) -> None:
        self._before: float = earlier.get("wall_s", 0.0)
        self._apart: dict[str, float] = {name: earlier.get(name, 0.0) for name in ("eval_s", "checkpoint_s")}
        self.start()

    def start(self) -> None:
        """Starts the clock."""
        self._began = time.perf_counter() - self._before

    @property
    def wall_s(self) -> float:
        """Seconds so far."""
        return time.perf_counter() - self._began

    def spend(self, name: str, seconds: float) -> None:
        """Adds to `eval_s` or `checkpoint_s`."""
        self._apart[name] += seconds

    def fields(self) -> dict[str, float]:
        """`wall_s`, and `eval_s` and `checkpoint_s`, which are parts of it."""
        return {"wall_s": self.wall_s, **self._apart}
