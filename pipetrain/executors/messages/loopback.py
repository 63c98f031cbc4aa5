"""The loopback address, at which the processes of one machine meet, out of reach of the network."""

import contextlib
import fcntl
import os
import socket
import struct

ADDRESS = "127.0.0.1"
"""Known without asking: the machine's own name need not resolve, nor to an address of this machine."""

_GET_ADDRESS = 0x8915  # SIOCGIFADDR of Linux
_REQUEST = struct.Struct("16s24s")  # its struct ifreq: a name, and a socket address of which four bytes are IPv4's
_IPV4 = slice(20, 24)


def interface(address: str = ADDRESS) -> str | None:
    """Name of the network interface with an address, usually `lo`; None if it cannot be found."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):  # an interface without an IPv4 address
                reply = fcntl.ioctl(any_socket, _GET_ADDRESS, _REQUEST.pack(name.encode(), b""))
                if socket.inet_ntoa(reply[_IPV4]) == address:
                    return name
    return None


def use(address: str = ADDRESS) -> None:
    """Makes Gloo and NCCL use the interface with this process's address, unless the user has named an interface."""
    if name := interface(address):
        os.environ.setdefault("GLOO_SOCKET_IFNAME", name)
        os.environ.setdefault("NCCL_SOCKET_IFNAME", f"={name}")  # this very one, not those whose names begin so
