"""Two machines with a link between them, slow where the kernel can delay it: network namespaces of this one."""

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass

import pytest


@dataclass(frozen=True)
class Machine:
    """A machine of its own, as far as the network can tell.

    Attributes:
        namespace: what `ip netns` calls it.
        address: where the other one reaches it.
        interface: its end of the link.
    """

    namespace: str
    address: str
    interface: str

    def command(self, *words: str) -> list[str]:
        """The command, carried out on this machine, which has a name of its own."""
        named = ["unshare", "--uts", "sh", "-c", 'hostname "$0" && exec "$@"', self.namespace]
        return ["ip", "netns", "exec", self.namespace, *named, *words]

    def cut_off(self) -> None:
        """Takes the link down."""
        _must(_ip("-n", self.namespace, "link", "set", self.interface, "down"))


@contextlib.contextmanager
def two_machines(delay: str = "2ms", rate: str = "200mbit") -> Iterator[tuple[Machine, Machine]]:
    """Skips the test where this process may not make them."""
    machines = [
        Machine(f"pipetrain-{os.getpid()}-{name}", f"10.213.7.{name}", f"pt{os.getpid()}-{name}") for name in (1, 2)
    ]
    if missing := [tool for tool in ("ip", "tc", "unshare") if shutil.which(tool) is None]:
        pytest.skip(f"network namespaces need {missing[0]}")
    try:
        made = [_ip("netns", "add", each.namespace) for each in machines]
        if refused := next((each for each in made if each.returncode), None):
            pytest.skip(f"network namespaces cannot be made here: {refused.stderr.strip()}")
        _connect(machines, delay, rate)
        yield machines[0], machines[1]
    finally:
        for each in machines:
            _ip("netns", "del", each.namespace)


def _connect(machines: list[Machine], delay: str, rate: str) -> None:
    _must(_ip("link", "add", machines[0].interface, "type", "veth", "peer", "name", machines[1].interface))
    for each in machines:
        _must(_ip("link", "set", each.interface, "netns", each.namespace))
        _must(_ip("-n", each.namespace, "addr", "add", f"{each.address}/24", "dev", each.interface))
        _must(_ip("-n", each.namespace, "link", "set", each.interface, "up"))
        _must(_ip("-n", each.namespace, "link", "set", "lo", "up"))
        _slow_down(each, delay, rate)


def _slow_down(machine: Machine, delay: str, rate: str) -> None:
    for slow in (["netem", "delay", delay, "rate", rate], ["tbf", "rate", rate, "burst", "32kbit", "latency", "50ms"]):
        command = machine.command("tc", "qdisc", "add", "dev", machine.interface, "root", *slow)
        if subprocess.run(command, capture_output=True).returncode == 0:
            return  # a small kernel has no netem, and maybe not even tbf


def _ip(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["ip", *words], capture_output=True, text=True)


def _must(done: subprocess.CompletedProcess[str]) -> None:
    if done.returncode:
        pytest.skip(f"two machines cannot be connected here: {done.stderr.strip()}")
