"""The first process of a run, as others reach it."""

import contextlib
import errno
import socket

import pytest

from pipetrain.engine.errors import RunError
from pipetrain.runner.launch import master


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    monkeypatch.setattr(master, "PATIENCE_SECONDS", 0.05)
    monkeypatch.setattr(master, "_PAUSE_SECONDS", 0.01)
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("MASTER_ADDR", "192.0.2.1")
    monkeypatch.setenv("MASTER_PORT", "29500")
    monkeypatch.delenv("TORCHELASTIC_USE_AGENT_STORE", raising=False)


def answers(monkeypatch, *errors):
    """Connections fail in turn, and then succeed."""
    left = list(errors)

    def connect(_address, timeout):
        assert timeout
        if left:
            raise left.pop(0)
        return socket.socket()

    monkeypatch.setattr(socket, "create_connection", connect)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (socket.gaierror(socket.EAI_NONAME, "Name or service not known"), "Name or service not known"),
        (OSError(errno.EHOSTUNREACH, "No route to host"), "No route to host"),
        (TimeoutError("timed out"), "timed out"),
    ],
)
def test_master_that_is_nowhere_is_named(monkeypatch, error, reason):
    answers(monkeypatch, *[error] * 1000)
    with pytest.raises(RunError, match=f"stage 1, on .*MASTER_ADDR=192.0.2.1, MASTER_PORT=29500 in 0 s: {reason}; is"):
        master.wait_for_master("stage 1")


def test_wait_for_preparing_master_is_announced_once(monkeypatch, capsys):
    answers(monkeypatch, *[ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")] * 20)
    master.wait_for_master("stage 1")
    told = capsys.readouterr().err
    assert told.count("Connection refused; waiting for its first process") == 1


def test_master_does_not_look_for_itself(monkeypatch):
    monkeypatch.setenv("RANK", "0")
    answers(monkeypatch, *[TimeoutError()] * 1000)
    master.wait_for_master("stage 0")


@pytest.fixture
def routes(monkeypatch):
    """Routes of this machine: destination -> its own address on the way."""
    found = {}

    class Datagrams(contextlib.nullcontext):
        def connect(self, target):
            if target[0] not in found:
                raise OSError(errno.ENETUNREACH, "Network is unreachable")
            self.target = target[0]

        def getsockname(self):
            return found[self.target], 40000

        def __enter__(self):
            return self

    monkeypatch.setattr(socket, "socket", lambda *_kind: Datagrams())
    return found


def test_own_address_is_the_one_that_leads_to_the_master(monkeypatch, routes):
    monkeypatch.setenv("MASTER_ADDR", "10.0.0.1")
    routes["10.0.0.1"] = "10.0.0.7"
    assert master.local_address() == "10.0.0.7"
    monkeypatch.setenv("MASTER_ADDR", "10.0.1.1")
    assert master.local_address() is None


def test_first_machine_named_127_0_1_1_has_the_address_of_its_default_route(monkeypatch, routes):
    monkeypatch.setenv("MASTER_ADDR", "127.0.1.1")
    routes["127.0.1.1"] = "127.0.0.1"
    assert master.local_address() == "127.0.0.1"
    routes["192.0.2.1"] = "10.0.0.7"
    assert master.local_address() == "10.0.0.7"
