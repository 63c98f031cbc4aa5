import fcntl
import socket

from pipetrain.executors.messages import loopback


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
    assert loopback.interface("192.0.2.2") == "eth0"
    del addresses["own"]
    assert loopback.interface() is None


def test_loopback_is_used_unless_the_user_names_an_interface(monkeypatch):
    monkeypatch.setattr(loopback, "interface", lambda _address: "lo")
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth7")
    monkeypatch.delenv("NCCL_SOCKET_IFNAME", raising=False)
    environment = loopback.os.environ
    loopback.use()
    assert (environment["GLOO_SOCKET_IFNAME"], environment["NCCL_SOCKET_IFNAME"]) == ("eth7", "=lo")
    monkeypatch.delenv("NCCL_SOCKET_IFNAME")


def test_this_machine_has_a_loopback_interface():
    assert loopback.interface() in {name for _, name in socket.if_nameindex()}
