"""Links slowed down on purpose, and waits for messages taken."""

import time
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch
from support.refusals import assert_refused

from pipetrain.engine.executors.messages.links import Links, SlowLink, given_bytes_per_s
from pipetrain.engine.executors.messages.transport import Transport


def test_slow_link_transfers_queue_without_blocking_sender():
    link, begun, ended = SlowLink(1e6), [], []

    def start():
        begun.append(time.monotonic())
        return lambda: ended.append(True)

    first = time.monotonic()
    sent = [link.send(start, 30_000) for _ in range(3)]
    assert len(begun) < 3
    for wait in sent:
        wait()
    assert len(ended) == 3
    assert begun[0] - first >= 0.03
    assert begun[2] - first >= 0.09


def test_lost_neighbor_is_reported_when_transfer_is_awaited():
    def fails():
        raise RuntimeError("connection closed")

    wait = SlowLink(1e9).send(fails, 1)
    with pytest.raises(RuntimeError, match="connection closed"):
        wait()


def test_bandwidth_is_that_of_the_environment(monkeypatch):
    monkeypatch.delenv("PIPETRAIN_LINK_GIGABYTES_PER_S", raising=False)
    assert given_bytes_per_s() is None
    monkeypatch.setenv("PIPETRAIN_LINK_GIGABYTES_PER_S", "0.5")
    assert given_bytes_per_s() == 5e8


@pytest.mark.parametrize("given", ["nan", "inf", "0", "-1", "fast", ""])
def test_invalid_bandwidth_is_refused_by_variable_name(monkeypatch, given):
    monkeypatch.setenv("PIPETRAIN_LINK_GIGABYTES_PER_S", given)
    assert_refused(f"^PIPETRAIN_LINK_GIGABYTES_PER_S={given}: must be a number above 0", given_bytes_per_s)


def test_waits_for_the_last_message_and_for_the_device_count_as_waits(monkeypatch):
    around, waited = [], []

    @contextmanager
    def waiting(what):
        around.append(what)
        yield
        around.pop()

    def event(name):
        return SimpleNamespace(synchronize=lambda: waited.append((name, *around)))

    monkeypatch.setattr("pipetrain.engine.executors.messages.links.event", lambda _device: event("computed"))
    links = Links(Transport(torch.device("cpu")), waiting)
    links.catch_up("activations")
    assert not waited
    links.took(event("arrived"))
    links.catch_up("activations")
    assert waited == [("arrived", "activations"), ("computed", "its device")]
