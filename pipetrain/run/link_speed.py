"""How fast two workers send each other tensors, measured with two processes and the messages of a run."""

import statistics
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.multiprocessing import start_processes

from pipetrain.executors import loopback
from pipetrain.executors.neighbors import groups_of_neighbors
from pipetrain.executors.p2p import Incoming, Link, Outgoing
from pipetrain.schedules import Replicas

_BYTES = 2**22
_WARM_UPS, _REPEATS = 3, 10
_KEY = "probe"
_RESULT = "bytes_per_s"


def measured_bytes_per_s(device: str) -> float:
    """Bytes per second from one worker to another.

    A message goes back and forth, as activations and gradients do: over Gloo and the loopback interface on the CPU or
    where two workers would share a CUDA device, else over NCCL from device to device.

    Args:
        device: cpu or cuda.
    """
    with tempfile.TemporaryDirectory() as folder:
        start_processes(_worker, args=(folder, device), nprocs=2, start_method="spawn")
        return float(Path(folder, _RESULT).read_text())


def _worker(rank: int, folder: str, kind: str) -> None:
    torch.set_num_threads(1)
    device = torch.device("cpu") if kind == "cpu" else torch.device(kind, rank % torch.cuda.device_count())
    loopback.use()
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    if rank == 0:
        Path(folder, _RESULT).write_text(str(_sent_and_returned(device)))
    else:
        _return_all(device)
    dist.destroy_process_group()


def _ports(rank: int, device: torch.device) -> tuple[Outgoing, Incoming]:
    """The ends of both directions between the two workers."""
    direct = device.type == "cuda" and torch.cuda.device_count() > 1 and dist.is_nccl_available()
    groups = groups_of_neighbors(Replicas.one_each(2), device, device_to_device=direct)
    to, back = (Link(1 - rank, 1 - rank, groups[(0, 1), forward], device, direct) for forward in (rank == 0, rank == 1))
    incoming = Incoming(back, "a probe")
    incoming.expect([_KEY] * (_WARM_UPS + _REPEATS))
    return Outgoing(to, "a probe"), incoming


def _sent_and_returned(device: torch.device) -> float:
    outgoing, incoming = _ports(0, device)
    probe = torch.zeros(_BYTES, dtype=torch.uint8, device=device)
    seconds = []
    for _ in range(_WARM_UPS + _REPEATS):
        began = time.perf_counter()
        outgoing.send(_KEY, (probe,))
        incoming.take()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        seconds.append(time.perf_counter() - began)
    outgoing.settle(0)
    return 2 * _BYTES / statistics.median(seconds[_WARM_UPS:])


def _return_all(device: torch.device) -> None:
    outgoing, incoming = _ports(1, device)
    for _ in range(_WARM_UPS + _REPEATS):
        outgoing.send(_KEY, incoming.take())
    outgoing.settle(0)
