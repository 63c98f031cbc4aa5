"""Which transport processes have, by the devices that they compute on, and what it sets."""

import contextlib
import fcntl
import os
import socket
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from support.forking import forked

import pipetrain
from pipetrain.engine.executors.messages import transport
from pipetrain.engine.executors.messages.control import all_gather_json
from pipetrain.engine.executors.messages.links import Links
from pipetrain.engine.executors.messages.neighbors import groups_of_neighbors
from pipetrain.engine.executors.messages.transport import DeviceIdentity, Transport, set_environment, transport_between
from pipetrain.engine.schedules import Replicas

CUDA = torch.device("cuda", 0)


def gpu(number, machine="a", slot=None, name="NVIDIA H100", nccl_host=""):
    bus = f"0:{number if slot is None else slot}:0"
    return DeviceIdentity("cuda", machine, bus, f"GPU-{machine}-{number}", name, nccl_host)


@pytest.fixture
def _nccl(monkeypatch):
    monkeypatch.setattr(dist, "is_nccl_available", lambda: True)


@pytest.mark.usefixtures("_nccl")
@pytest.mark.parametrize(
    ("identities", "backend", "reason"),
    [
        ([gpu(0), gpu(1)], "nccl", "GPU of its own"),
        # each process of a batch system may see but one device, and call it number 0
        ([gpu(0, "a"), gpu(0, "b")], "nccl", "GPU of its own"),
        ([gpu(0), gpu(1), gpu(0)], "gloo", "processes 0 and 2 share a GPU"),
        ([gpu(0, name="NVIDIA A100 MIG 1g.5gb"), gpu(1, slot=0, name="NVIDIA A100 MIG 1g.5gb")], "gloo", "MIG"),
        ([gpu(0), gpu(1, slot=0)], "gloo", "processes 0 and 1 share a GPU"),
        ([gpu(0, nccl_host="x"), gpu(0, nccl_host="y")], "nccl", "processes 0 and 1 share a GPU, but"),
        ([gpu(0, nccl_host="x"), gpu(0, nccl_host="y"), gpu(0, nccl_host="x")], "gloo", "processes 0 and 2 share"),
        ([DeviceIdentity("cpu"), DeviceIdentity("cpu")], "gloo", "CPU"),
        ([gpu(0)], "gloo", "one process"),
    ],
)
def test_transport_follows_from_the_devices_of_all_processes(identities, backend, reason):
    found = transport_between(CUDA, identities)
    assert found.backend == backend
    assert reason in found.reason
    assert found.direct is (backend == "nccl")
    assert found.buffers == (CUDA if found.direct else torch.device("cpu"))


def test_devices_of_their_own_without_nccl_use_host_memory(monkeypatch):
    monkeypatch.setattr(dist, "is_nccl_available", lambda: False)
    assert transport_between(CUDA, [gpu(0), gpu(1)]).backend == "gloo"


def test_identity_names_the_bus_and_the_device(monkeypatch):
    properties = SimpleNamespace(name="H100", uuid="GPU-7", pci_domain_id=0, pci_bus_id=5, pci_device_id=1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _device: properties)
    monkeypatch.setenv("NCCL_HOSTID", "host")
    found = DeviceIdentity.of(CUDA)
    assert (found.uuid, found.bus, found.name, found.nccl_host) == ("GPU-7", "0:5:1", "H100", "host")
    assert found.machine


def test_user_environment_is_kept_and_that_of_cpu_unset(monkeypatch):
    for name in ("CUDA_DEVICE_MAX_CONNECTIONS", "TORCH_NCCL_ENABLE_MONITORING"):
        monkeypatch.delenv(name, raising=False)
    set_environment("cpu")
    assert "CUDA_DEVICE_MAX_CONNECTIONS" not in os.environ
    monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", "8")
    monkeypatch.setenv("TORCH_NCCL_ENABLE_MONITORING", "")
    monkeypatch.delenv("TORCH_NCCL_ENABLE_MONITORING")
    set_environment("cuda")
    assert os.environ["CUDA_DEVICE_MAX_CONNECTIONS"] == "8"
    assert os.environ["TORCH_NCCL_ENABLE_MONITORING"] == "0"


def note_sockets(rank, folder, count):
    """Leaves the number of sockets of a process that has connected to its neighbors and taken part in collectives."""
    set_environment("cpu")
    transport.use_interface()
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=count)
    groups_of_neighbors(Replicas.one_each(count), Links(Transport(torch.device("cpu"))))
    assert all_gather_json(rank) == list(range(count))
    sockets = 0
    for file in [*Path("/proc/self/fd").iterdir()]:
        with contextlib.suppress(FileNotFoundError):  # the folder itself
            sockets += str(file.readlink()).startswith("socket:")
    (folder / f"{rank}").write_text(str(sockets))
    dist.barrier()
    dist.destroy_process_group()


def test_processes_connect_to_their_neighbors_alone(tmp_path):
    most = []
    for count in (3, 6):
        folder = tmp_path / f"{count}"
        folder.mkdir()
        forked(note_sockets, folder, count, count=count)
        most.append(max(int((folder / f"{rank}").read_text()) for rank in range(count)))
    assert most[1] - most[0] < 3  # any group that connects all would add 3


def test_one_module_knows_the_name_of_the_backend():
    package = Path(pipetrain.__file__).parent
    naming = [
        str(path.relative_to(package))
        for path in package.rglob("*.py")
        if '"nccl"' in path.read_text(encoding="utf-8") and path.name != "doctor.py"
    ]
    assert naming == ["engine/executors/messages/transport.py"]


def test_interface_is_found_by_its_address_whatever_it_is_called(monkeypatch):
    addresses = {"eth0": "192.0.2.2", "dummy": None, "own": "127.0.0.1"}

    def ioctl(_file, _request, packed):
        address = addresses[packed[:16].rstrip(b"\0").decode()]
        if address is None:
            raise OSError("no address")
        return packed[:20] + socket.inet_aton(address) + packed[24:]

    monkeypatch.setattr(socket, "if_nameindex", lambda: list(enumerate(addresses)))
    monkeypatch.setattr(fcntl, "ioctl", ioctl)
    assert transport.interface_of() == "own"
    assert transport.interface_of("192.0.2.2") == "eth0"
    del addresses["own"]
    assert transport.interface_of() is None


def test_loopback_is_used_unless_the_user_names_an_interface(monkeypatch):
    monkeypatch.setattr(transport, "interface_of", lambda _address: "lo")
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth7")
    monkeypatch.delenv("NCCL_SOCKET_IFNAME", raising=False)
    environment = transport.os.environ
    transport.use_interface()
    assert (environment["GLOO_SOCKET_IFNAME"], environment["NCCL_SOCKET_IFNAME"]) == ("eth7", "=lo")
    monkeypatch.delenv("NCCL_SOCKET_IFNAME")


def test_this_machine_has_a_loopback_interface():
    assert transport.interface_of() in {name for _, name in socket.if_nameindex()}


@pytest.mark.parametrize(("given", "most"), [(None, 2), ("16", 0)])
def test_communicators_have_streams_of_high_priority_and_few_thread_blocks(monkeypatch, given, most):
    made = SimpleNamespace(Options=lambda: SimpleNamespace(config=SimpleNamespace(max_ctas=0)))
    monkeypatch.setattr(dist, "ProcessGroupNCCL", made, raising=False)
    monkeypatch.delenv("NCCL_MAX_CTAS", raising=False)
    if given is not None:
        monkeypatch.setenv("NCCL_MAX_CTAS", given)
    options = transport._nccl_options()
    assert options.is_high_priority_stream
    assert options.config.max_ctas == most
