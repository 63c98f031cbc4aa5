"""Address and reachability of the master: the process, maybe on another machine, to which all others connect."""

import os
import socket
import sys
import time

from pipetrain.errors import RunError, one_line

PATIENCE_SECONDS = 30.0
"""Seconds before an unreachable master is reported."""
LAUNCHER_HOSTS = "TORCHELASTIC_USE_AGENT_STORE"
"""Environment variable that torchrun sets to True: its own process hosts the store, and not rank 0."""
_CONNECT_SECONDS = 10.0
_PAUSE_SECONDS = 0.5


def wait_for_master(who: str) -> None:
    """Waits until the master answers; reports the wait if it takes long.

    A master that still prepares the run refuses connections. It is waited for until `launch.start_timeout` ends that.

    Args:
        who: what messages call this process.

    Raises:
        RunError: the name is unknown, there is no route to the address, or nothing answers.
    """
    if os.environ["RANK"] == "0" and not is_torchruns():
        return
    began, told = time.monotonic(), False
    while (error := connection_error()) is not None:
        if time.monotonic() - began > PATIENCE_SECONDS:
            if not isinstance(error, ConnectionRefusedError):
                raise RunError(
                    f"{_told(who, error)}; is that the first machine, and does a firewall let the port through?"
                )
            if not told:
                print(f"pipetrain: {_told(who, error)}; waiting for its first process", file=sys.stderr, flush=True)
            told = True
        time.sleep(_PAUSE_SECONDS)


def is_torchruns() -> bool:
    """True if the master is torchrun's own process, which answers before the workers start, rather than rank 0."""
    return os.environ.get(LAUNCHER_HOSTS) == "True"


def address() -> tuple[str, int]:
    """Host and port on which the master listens."""
    return os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])


def connection_error() -> OSError | None:
    """Why a connection to the master cannot be made; None if it answers."""
    try:
        socket.create_connection(address(), timeout=_CONNECT_SECONDS).close()
    except OSError as error:
        return error
    return None


def local_address() -> str | None:
    """The address of this machine from which the master is reached, such as `10.0.0.7`; None without a route."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as nothing_is_sent:
            nothing_is_sent.connect(address())
            return str(nothing_is_sent.getsockname()[0])
    except OSError:
        return None


def _told(who: str, error: OSError) -> str:
    host, port = address()
    return (
        f"{who}, on {socket.gethostname()}, has not reached MASTER_ADDR={host}, MASTER_PORT={port} in "
        f"{PATIENCE_SECONDS:.0f} s: {one_line(error.strerror or error)}"
    )
