"""Address and reachability of the master: the process, maybe on another machine, to which all workers connect."""

import os
import socket
import sys
import time

from pipetrain.engine.errors import RunError, one_line

PATIENCE_SECONDS = 30.0
"""Seconds before an unreachable master is reported."""
LAUNCHER_HOSTS = "TORCHELASTIC_USE_AGENT_STORE"
"""Environment variable that torchrun sets to True: its own process hosts the store, and not rank 0."""
_OUTSIDE = ("192.0.2.1", 9)
"""An address that no machine has (RFC 5737)."""
_CONNECT_SECONDS = 10.0
_PAUSE_SECONDS = 0.5


def wait_for_master(who: str) -> None:
    """Waits until the master answers; reports a long wait.

    A master that still prepares the run refuses connections; `launch.start_timeout` limits that wait.

    Raises:
        RunError: the name is unknown, there is no route to the address, or nothing answers.
    """
    if os.environ["RANK"] == "0" and not is_torchruns():
        return
    began, is_reported = time.monotonic(), False
    while (error := connection_error()) is not None:
        if time.monotonic() - began > PATIENCE_SECONDS:
            host, port = address()
            line = (
                f"{who}, on {socket.gethostname()}, has not reached MASTER_ADDR={host}, MASTER_PORT={port} in "
                f"{PATIENCE_SECONDS:.0f} s: {one_line(error.strerror or error)}"
            )
            if not isinstance(error, ConnectionRefusedError):
                raise RunError(f"{line}; is that the first machine, and does a firewall let the port through?")
            if not is_reported:
                print(f"pipetrain: {line}; waiting for its first process", file=sys.stderr, flush=True)
            is_reported = True
        time.sleep(_PAUSE_SECONDS)


def is_torchruns() -> bool:
    """True if the master is torchrun's own process, which answers before the workers start, rather than rank 0."""
    return os.environ.get(LAUNCHER_HOSTS) == "True"


def address() -> tuple[str, int]:
    """Host and port on which the master listens."""
    return os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])


def connection_error() -> OSError | None:
    """The error of a connection to the master; None if it answers."""
    try:
        socket.create_connection(address(), timeout=_CONNECT_SECONDS).close()
    except OSError as error:
        return error
    return None


def local_address() -> str | None:
    """The address at which other machines reach this one, such as `10.0.0.7`; None if it cannot be found.

    It is the one from which the master is reached, unless that is a loopback address, as Debian's /etc/hosts gives a
    machine's own name; then it is the address of the default route.
    """
    found = None
    for target in (address(), _OUTSIDE):
        try:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as nothing_is_sent:
                nothing_is_sent.connect(target)
                found = str(nothing_is_sent.getsockname()[0])
        except OSError:  # without a route to the outside, all processes are on this machine
            return found
        if not found.startswith("127."):
            return found
    return found
