"""The clock asks for a checkpoint once it is time, and again when as much time has passed since the last one."""

import time

from pipetrain.training.checkpoint_saver import SaveClock


def test_clock_asks_once_until_it_is_started_anew(monkeypatch):
    now, asked = [100.0], []
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    clock = SaveClock(2, lambda: asked.append(now[0]))
    for seconds in (100, 219, 220, 500):
        now[0] = float(seconds)
        clock.look()
    assert asked == [220]
    clock.start()
    for seconds in (619, 620, 700):
        now[0] = float(seconds)
        clock.look()
    assert asked == [220, 620]


def test_clock_lets_a_minibatch_pass_however_short_its_time_is():
    asked = []
    clock = SaveClock(1e-9, lambda: asked.append(None))
    time.sleep(1e-6)
    clock.look()
    assert asked == []
    clock.look()
    assert asked == [None]


def test_clock_without_minutes_never_asks(monkeypatch):
    asked = []
    clock = SaveClock(None, lambda: asked.append(None))
    monkeypatch.setattr(time, "monotonic", lambda: 1e9)
    clock.look()
    assert asked == []
