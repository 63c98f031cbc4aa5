"""When a run saves, and when it reports what it has saved."""

import json
import time

from support.worker_pool import job, simulated

from pipetrain.runner.training.checkpoint.writer import BackgroundWriter
from pipetrain.runner.training.checkpoint_saver import CheckpointSaver, SaveClock


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


def test_checkpoint_is_reported_before_the_next_one_removes_it(tmp_path, monkeypatch):
    report = CheckpointSaver._report
    monkeypatch.setattr(BackgroundWriter, "succeeded", False)  # each is complete only when the next one is due
    monkeypatch.setattr(CheckpointSaver, "_report", lambda saver: (saver.writer.settle(10), report(saver)))
    calls = tmp_path / "calls"
    own = {"_target_": "support.own_callbacks.Calls", "file": str(calls)}
    keep = {"every_steps": 1, "keep_last": 1}
    simulated(job(tmp_path / "run", "gpipe", 2, checkpoint=keep, callbacks=[own], train={"max_steps": 3}))
    told = [call for call in map(json.loads, calls.read_text().splitlines()) if call[0] == "on_checkpoint"]
    assert told == [["on_checkpoint", step, True] for step in (1, 2, 3)]
