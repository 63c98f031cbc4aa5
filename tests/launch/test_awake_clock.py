"""A clock that stands still while the process is stopped."""

import itertools
import time

from pipetrain.launch.awake_clock import AwakeClock


def test_pause_between_two_looks_counts_only_so_much(monkeypatch):
    times = itertools.chain([100.0, 100.5, 100.75, 4000.0, 4000.5])
    monkeypatch.setattr(time, "monotonic", lambda: next(times))
    clock = AwakeClock(most=2.0)
    assert [clock.look() for _ in range(4)] == [0.5, 0.75, 2.75, 3.25]
