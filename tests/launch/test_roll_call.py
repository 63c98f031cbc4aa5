"""Who was heard of, and when."""

import os
import socket
import subprocess
import sys

from pipetrain.launch.awake_clock import AwakeClock
from pipetrain.launch.heartbeat import Heartbeat
from pipetrain.launch.roll_call import RollCall, is_gone


def beat(number, changes=0, process=1):
    return Heartbeat(process, os.getpid(), socket.gethostname(), number, changes=changes)


def at(monkeypatch, seconds):
    monkeypatch.setattr(AwakeClock, "look", lambda _self: seconds)


def test_heartbeat_is_the_same_when_it_has_been_sent():
    assert Heartbeat.decoded(beat(3).encoded()) == beat(3)


def test_worker_is_silent_since_its_newest_heartbeat(monkeypatch):
    calls = RollCall()
    assert calls.last(1) is None
    for seconds, number in ((1.0, 7), (2.0, 7), (3.0, 8)):
        at(monkeypatch, seconds)
        calls.look()
        calls.hear(beat(number))
    assert calls.last(1).number == 8
    at(monkeypatch, 5.0)
    calls.look()
    assert calls.silence(1) == 2.0


def test_worker_is_idle_since_a_heartbeat_told_of_something_new(monkeypatch):
    calls = RollCall()
    for seconds, number, changes in ((1.0, 7, 5), (2.0, 8, 6), (3.0, 9, 6)):
        at(monkeypatch, seconds)
        calls.look()
        calls.hear(beat(number, changes))
    assert calls.silence(1) == 0.0
    assert calls.idleness(1) == 1.0


def test_worker_is_gone_when_its_process_has_ended_and_not_when_it_is_on_another_machine():
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    assert is_gone(Heartbeat(1, ended.pid, socket.gethostname(), 1))
    assert not is_gone(Heartbeat(1, ended.pid, "elsewhere", 1))
    assert not is_gone(beat(1))


def test_worker_whose_number_is_that_of_another_users_process_is_gone(monkeypatch):
    def refused(_pid, _number):
        raise PermissionError

    monkeypatch.setattr(os, "kill", refused)
    assert is_gone(Heartbeat(0, os.getpid(), socket.gethostname(), 1))
