"""Periods of graphs of repeating events."""

import numpy as np
import pytest

from pipetrain.engine.program.event_graph import EventGraph


def graph(*edges):
    """Of edges (source, target, time, turns)."""
    ordered = sorted(edges, key=lambda edge: edge[1])
    sources, targets, times, turns = (np.array(column) for column in zip(*ordered, strict=True))
    first = np.searchsorted(targets, np.arange(targets[-1] + 1))
    return EventGraph(sources, targets, times.astype(float), turns, first)


def test_slowest_cycle_that_nothing_waits_for_at_first_is_found():
    """The first edge into an event is the first guess: here each waits for the event before, in one large circle."""
    count = 50
    circle = [(i, (i + 1) % count, 1.0, int(i == count - 1)) for i in range(count)]
    assert graph(*circle, (7, 7, 60.0, 1)).period() == 60.0


def test_events_that_wait_for_each_other_within_a_turn_are_told():
    with pytest.raises(ValueError, match="wait for each other"):
        graph((0, 1, 1.0, 0), (1, 0, 1.0, 0)).period()
