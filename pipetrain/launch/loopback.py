"""The loopback address, at which the processes of one machine meet, out of reach of the network."""

import contextlib
import fcntl
import os
import socket
import struct
from collections.abc import Callable
from typing import ClassVar

from torch.distributed import PrefixStore, TCPStore
from torch.distributed.elastic.rendezvous import (
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStoreInfo,
    rendezvous_handler_registry,
)
from typing_extensions import override

ADDRESS = "127.0.0.1"
"""Known without asking: the machine's own name need not resolve, nor to an address of this machine."""

_GET_ADDRESS = 0x8915  # SIOCGIFADDR of Linux
_REQUEST = struct.Struct("16s24s")  # its struct ifreq: a name, and a socket address of which four bytes are IPv4's
_IPV4 = slice(20, 24)


def interface() -> str | None:
    """The name of the network interface with this address: `lo`, as a rule. None where the system does not tell."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):  # an interface without an IPv4 address
                reply = fcntl.ioctl(any_socket, _GET_ADDRESS, _REQUEST.pack(name.encode(), b""))
                if socket.inet_ntoa(reply[_IPV4]) == ADDRESS:
                    return name
    return None


def use() -> None:
    """Has Gloo and NCCL use this interface in this process, unless the user has named another."""
    if name := interface():
        os.environ.setdefault("GLOO_SOCKET_IFNAME", name)
        os.environ.setdefault("NCCL_SOCKET_IFNAME", f"={name}")  # this very one, not those whose names begin so


class LoopbackRendezvous(RendezvousHandler):
    """A rendezvous of one launcher, whose workers use its store.

    torch's own listens on every interface and unpickles what it reads from its store, which anyone who reaches the
    machine could have written.

    Args:
        run_id: tells runs apart.
        check: called while the launcher finds nothing wrong with its workers; raises what it does not see.
    """

    NAME: ClassVar[str] = "pipetrain-loopback"
    """Under which torch's launcher finds it."""

    def __init__(self, run_id: str, check: Callable[[], None]) -> None:
        self._run_id = run_id
        self._check = check
        listener = socket.create_server((ADDRESS, 0))
        self._port = listener.getsockname()[1]
        self._store = TCPStore(
            ADDRESS, self._port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach()
        )

    @override
    def get_backend(self) -> str:
        return self.NAME

    @property
    @override
    def use_agent_store(self) -> bool:
        return True

    @override
    def next_rendezvous(self) -> RendezvousInfo:
        address = RendezvousStoreInfo(ADDRESS, self._port)
        return RendezvousInfo(PrefixStore(self._run_id, self._store), 0, 1, address)

    @override
    def is_closed(self) -> bool:
        return False

    @override
    def set_closed(self) -> None:
        pass

    @override
    def num_nodes_waiting(self) -> int:
        self._check()  # torch asks each time it has looked at the workers
        return 0

    @override
    def get_run_id(self) -> str:
        return self._run_id

    @override
    def shutdown(self) -> bool:
        return True


def _create(parameters: RendezvousParameters) -> RendezvousHandler:
    return LoopbackRendezvous(parameters.run_id, parameters.config["check"])


rendezvous_handler_registry.register(LoopbackRendezvous.NAME, _create)
