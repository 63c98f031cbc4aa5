"""Transport of tensors between the processes of a run: from GPU to GPU over NCCL, or through host memory over Gloo."""

from __future__ import annotations

import contextlib
import datetime
import fcntl
import os
import socket
import struct
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.distributed as dist

from pipetrain.engine.device_queue import queues
from pipetrain.engine.executors.messages import control
from pipetrain.engine.processes import machine_id

NEVER = datetime.timedelta(days=30)
"""A timeout of torch's would close a connection that is merely slow; hangs are the watchdog's to find."""

LOOPBACK = "127.0.0.1"
"""Known without asking: the machine's own name need not resolve, nor to an address of this machine."""
_GET_ADDRESS = 0x8915  # SIOCGIFADDR of Linux
_INTERFACE_REQUEST = struct.Struct("16s24s")
"""Linux's struct ifreq: a name, and a socket address of which four bytes are IPv4's."""
_IPV4 = slice(20, 24)

_GLOO, _NCCL = "gloo", "nccl"
_MAX_CTAS = 2
"""Thread blocks that a communicator of NCCL's may take, each nearly a whole multiprocessor of the GPU.

A receive occupies its thread blocks until the message comes; by default they are 16 to 32 over NVLink, which
the computation then lacks.
"""
_ENVIRONMENT = {
    # a send occupies the device until its receive is posted, so two stages that wait for their whole devices at once
    # may wait for each other: kernels are loaded at the start, and memory is released without such a wait
    "CUDA_MODULE_LOADING": "EAGER",
    "PYTORCH_ALLOC_CONF": "expandable_segments:True",
    # streams that share a hardware queue wait for each other: a receive would delay the sends queued after it
    "CUDA_DEVICE_MAX_CONNECTIONS": "32",
    # the watchdog of a worker finds hangs; torch's monitor takes a process that waits for one after eight minutes
    "TORCH_NCCL_ENABLE_MONITORING": "0",
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",
    # what torch sleeps four times over before an error of NCCL's ends a process
    "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "1000",
}
_ON_DEMAND = "TORCH_GLOO_LAZY_INIT"
"""Makes Gloo connect two processes at their first message, instead of all processes of a group at once."""
_EARLIER_NAMES = {"PYTORCH_ALLOC_CONF": "PYTORCH_CUDA_ALLOC_CONF"}


@dataclass(frozen=True)
class Transport:
    """Transport of tensors between the processes of a run; all processes have the same backend.

    Attributes:
        device: of this process.
        backend: of torch.distributed, gloo or nccl.
        reason: why this one, in words.
    """

    device: torch.device
    backend: str = _GLOO
    reason: str = ""

    @property
    def direct(self) -> bool:
        """True if tensors travel from device to device, past host memory."""
        return self.backend == _NCCL

    @property
    def buffers(self) -> torch.device:
        """The device of what is sent and received."""
        return self.device if self.direct else torch.device("cpu")

    def new_group(self, ranks: Sequence[int] | None = None) -> dist.ProcessGroup:
        """A process group of this backend, of some or all processes; every process of the run calls it."""
        return _new_group(ranks, self.backend, _nccl_options() if self.direct else None)

    def control_group(self, ranks: Sequence[int] | None = None) -> dist.ProcessGroup:
        """A process group for what travels in host memory; every process of the run calls it."""
        return _new_group(ranks, _GLOO)

    def connect(
        self, source: int, target: int, payload: dist.ProcessGroup, headers: dist.ProcessGroup | None = None
    ) -> None:
        """Connects two processes for messages from `source` to `target`; both call it, any other may.

        NCCL connects each direction in its first send and receive, which block the host of either process until
        its peer has made its call; so does Gloo, for both directions at once. All processes connect their groups in one
        order, so that they never wait in a ring.
        """
        for group, device in {headers or payload: torch.device("cpu"), payload: self.buffers}.items():
            with control.lost_stage_on_error(direct=device.type != "cpu"):
                if dist.get_rank() == source:
                    dist.send(torch.zeros(1, device=device), target, group)
                elif dist.get_rank() == target:
                    dist.recv(torch.zeros(1, device=device), source, group)

    def connect_all(self, group: dist.ProcessGroup) -> None:
        """Connects all processes of a group for `all_to_all_single`; all of them call it."""
        if self.direct:
            ends = torch.zeros(2, dist.get_world_size(group), device=self.device)
            with control.lost_stage_on_error(direct=True):
                dist.all_to_all_single(ends[0], ends[1], group=group)


@dataclass(frozen=True)
class DeviceIdentity:
    """Identity of the device of a process.

    Attributes:
        kind: such as cpu or cuda.
        machine: the boot of its machine.
        bus: address on the PCI bus; empty if torch does not report it.
        uuid: of the device, or of the instance if the GPU is partitioned.
        nccl_host: NCCL_HOSTID, which replaces the machine's identity in NCCL; empty if it is not set.
    """

    kind: str
    machine: str = ""
    bus: str = ""
    uuid: str = ""
    name: str = ""
    nccl_host: str = ""

    @classmethod
    def of(cls, device: torch.device) -> DeviceIdentity:
        """Identity of a device of this process."""
        if not queues(device):
            return cls(device.type)
        found = torch.get_device_module(device).get_device_properties(device)
        bus = [getattr(found, f"pci_{part}_id", None) for part in ("domain", "bus", "device")]
        known = all(part is not None for part in bus)
        return cls(
            device.type, machine_id(), ":".join(map(str, bus)) if known else "", str(found.uuid), str(found.name),
            os.environ.get("NCCL_HOSTID", ""),
        )  # fmt: skip

    @property
    def places(self) -> list[tuple[str, ...]]:
        """Names of its GPU; processes that have one in common compute on the same GPU."""
        return [(self.uuid,), *([(self.machine, self.bus)] if self.bus else [])]


def transport_between(device: torch.device, identities: Sequence[DeviceIdentity]) -> Transport:
    """Transport of this process, on `device`, between processes on devices with these identities."""
    return Transport(device, *_backend(identities))


def agreed_transport(device: torch.device) -> Transport:
    """Transport of all processes of the default group, which all call it together.

    It depends on which devices they have, not on how many each sees: a batch system may show each process one alone.
    """
    identities = control.all_gather_json(asdict(DeviceIdentity.of(device)))
    return transport_between(device, [DeviceIdentity(**each) for each in identities])


def set_environment(kind: str) -> None:
    """Sets variables of Gloo, CUDA and NCCL before their first call, for a kind of device, unless the user has."""
    os.environ.setdefault(_ON_DEMAND, "1")
    if kind != "cpu":
        for name, value in _ENVIRONMENT.items():
            if _EARLIER_NAMES.get(name, name) not in os.environ:
                os.environ.setdefault(name, value)


def interface_of(address: str = LOOPBACK) -> str | None:
    """Name of the network interface with an address, usually `lo`; None if it cannot be found."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):  # an interface without an IPv4 address
                reply = fcntl.ioctl(any_socket, _GET_ADDRESS, _INTERFACE_REQUEST.pack(name.encode(), b""))
                if socket.inet_ntoa(reply[_IPV4]) == address:
                    return name
    return None


def use_interface(address: str = LOOPBACK) -> None:
    """Makes Gloo and NCCL use the interface with this process's address, unless the user has named an interface."""
    if name := interface_of(address):
        os.environ.setdefault("GLOO_SOCKET_IFNAME", name)
        os.environ.setdefault("NCCL_SOCKET_IFNAME", f"={name}")  # this very one, not those whose names begin so


def _backend(identities: Sequence[DeviceIdentity]) -> tuple[str, str]:
    """Name of the backend, and the reason."""
    if len(identities) == 1:
        return _GLOO, "one process"
    if any(each.kind == "cpu" for each in identities):
        return _GLOO, "processes compute on the CPU"
    if not (dist.is_available() and dist.is_nccl_available()):
        return _GLOO, "this build of torch has no NCCL"
    if instances := [each.name for each in identities if " MIG " in f"{each.name} "]:
        return _GLOO, f"{instances[0]} is an instance of a GPU (MIG), which NCCL does not connect"
    return _backend_of_gpus(identities)


def _backend_of_gpus(identities: Sequence[DeviceIdentity]) -> tuple[str, str]:
    """As `_backend`, of GPUs that NCCL connects unless two processes share one."""
    reason = "each process has a GPU of its own"
    first: dict[tuple[str, ...], int] = {}
    of_host: dict[tuple[tuple[str, ...], str], int] = {}
    for j, identity in enumerate(identities):
        for place in identity.places:
            if (i := of_host.setdefault((place, identity.nccl_host), j)) != j:
                return _GLOO, f"processes {i} and {j} share a GPU"
            if (i := first.setdefault(place, j)) != j:
                reason = f"processes {i} and {j} share a GPU, but differ in NCCL_HOSTID"
    return _NCCL, reason


def _new_group(ranks: Sequence[int] | None, backend: str, options: Any = None) -> dist.ProcessGroup:
    every = None if ranks is None else [*ranks]
    group: dist.ProcessGroup = dist.new_group(every, timeout=NEVER, backend=backend, pg_options=options)
    return group


def _nccl_options() -> Any:
    """Options of the communicators of a group; the user may set NCCL's own variable for their limit.

    torch has separate pools, of 32 streams each, for high priority and for the computation.
    """
    options = dist.ProcessGroupNCCL.Options()
    options.is_high_priority_stream = True
    if "NCCL_MAX_CTAS" not in os.environ:
        options.config.max_ctas = _MAX_CTAS
    return options
