"""Two machines with a link between them, slow where the kernel can delay it: network namespaces of this one."""

import contextlib
import secrets
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass


class NotAllowedError(Exception):
    """This process cannot make them; says why."""


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

    def connect_again(self) -> None:
        """Takes the link up."""
        _must(_ip("-n", self.namespace, "link", "set", self.interface, "up"))


def torchrun(machines: Sequence[Machine], *words: str) -> list[list[str]]:
    """The command for each machine that starts one process of `pipetrain run` there with torchrun."""
    return [
        machine.command(
            sys.executable, "-m", "torch.distributed.run", f"--nnodes={len(machines)}", f"--node-rank={rank}",
            "--nproc-per-node=1", f"--master-addr={machines[0].address}", "--master-port=29500",
            "-m", "pipetrain", "run", *words,
        )
        for rank, machine in enumerate(machines)
    ]  # fmt: skip


@contextlib.contextmanager
def two_machines(delay: str = "2ms", rate: str = "200mbit") -> Iterator[tuple[Machine, Machine]]:
    """Makes two machines, and removes them.

    Args:
        delay: of the link, in each direction.
        rate: of the link, in each direction.

    Raises:
        NotAllowedError: this process has not the rights, or a tool is missing.
    """
    if missing := [tool for tool in ("ip", "tc", "unshare") if shutil.which(tool) is None]:
        raise NotAllowedError(f"network namespaces need {missing[0]}")
    name = secrets.token_hex(3)  # others may make some of their own
    machines = [Machine(f"pipetrain-{name}-{n}", f"10.213.7.{n}", f"pt-{name}-{n}") for n in (1, 2)]
    try:
        for each in machines:
            _must(_ip("netns", "add", each.namespace))
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
        _must(_ip("-n", each.namespace, "link", "set", "lo", "up"))
        each.connect_again()
        _slow_down(each, delay, rate)


def _slow_down(machine: Machine, delay: str, rate: str) -> None:
    for slow in (["netem", "delay", delay, "rate", rate], ["tbf", "rate", rate, "burst", "32kbit", "latency", "50ms"]):
        command = machine.command("tc", "qdisc", "add", "dev", machine.interface, "root", *slow)
        if subprocess.run(command, capture_output=True).returncode == 0:
            return  # a small kernel has no netem, and maybe not even tbf


def _ip(*words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(["ip", *words], capture_output=True, text=True)


def _must(done: "subprocess.CompletedProcess[str]") -> None:
    if done.returncode:
        raise NotAllowedError(f"two machines cannot be made here: {done.stderr.strip()}")
