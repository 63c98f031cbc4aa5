"""On one machine, processes meet where the network does not reach."""

import fcntl
import socket
from pathlib import Path

import pytest
from torch.distributed import TCPStore
from torch.distributed.elastic.rendezvous import RendezvousParameters
from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler

from pipetrain.launch import loopback
from pipetrain.launch.loopback import LoopbackRendezvous


@pytest.fixture
def rendezvous():
    parameters = RendezvousParameters(LoopbackRendezvous.NAME, "", "some-run", 1, 1, check=lambda: None)
    return get_rendezvous_handler(parameters)


def test_store_listens_on_the_loopback_address_alone(rendezvous):
    port = rendezvous.next_rendezvous().bootstrap_store_info.master_port
    tables = [Path(f"/proc/net/{name}").read_text() for name in ("tcp", "tcp6")]
    sockets = [line.split() for table in tables for line in table.splitlines()]
    listening = [local for _, local, _, state, *_ in sockets if state == "0A" and local.endswith(f":{port:04X}")]
    assert listening == [f"0100007F:{port:04X}"]


def test_workers_reach_the_store_of_the_launcher(rendezvous):
    meeting = rendezvous.next_rendezvous()
    assert (meeting.rank, meeting.world_size, rendezvous.use_agent_store) == (0, 1, True)
    address = meeting.bootstrap_store_info
    worker = TCPStore(address.master_addr, address.master_port, is_master=False, wait_for_workers=False)
    worker.set("from", "a worker")
    assert worker.get("from") == b"a worker"


def test_two_runs_meet_in_two_places():
    meetings = [LoopbackRendezvous(run, lambda: None).next_rendezvous() for run in ("one", "other")]
    assert len({meeting.bootstrap_store_info.master_port for meeting in meetings}) == 2


def test_launcher_that_finds_nothing_wrong_asks_whether_anything_else_is():
    def check():
        raise ValueError("stage 1 is gone")

    parameters = RendezvousParameters(LoopbackRendezvous.NAME, "", "some-run", 1, 1, check=check)
    with pytest.raises(ValueError, match="stage 1 is gone"):
        get_rendezvous_handler(parameters).num_nodes_waiting()


def test_interface_is_found_by_its_address_whatever_it_is_called(monkeypatch):
    addresses = {"eth0": "192.0.2.2", "dummy": None, "own": "127.0.0.1"}

    def ioctl(_file, _request, packed):
        address = addresses[packed[:16].rstrip(b"\0").decode()]
        if address is None:
            raise OSError("no address")
        return packed[:20] + socket.inet_aton(address) + packed[24:]

    monkeypatch.setattr(socket, "if_nameindex", lambda: list(enumerate(addresses)))
    monkeypatch.setattr(fcntl, "ioctl", ioctl)
    assert loopback.interface() == "own"
    del addresses["own"]
    assert loopback.interface() is None


def test_loopback_is_used_unless_the_user_names_an_interface(monkeypatch):
    monkeypatch.setattr(loopback, "interface", lambda: "lo")
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth7")
    monkeypatch.delenv("NCCL_SOCKET_IFNAME", raising=False)
    environment = loopback.os.environ
    loopback.use()
    assert (environment["GLOO_SOCKET_IFNAME"], environment["NCCL_SOCKET_IFNAME"]) == ("eth7", "=lo")
    monkeypatch.delenv("NCCL_SOCKET_IFNAME")


def test_this_machine_has_a_loopback_interface():
    assert loopback.interface() in {name for _, name in socket.if_nameindex()}
