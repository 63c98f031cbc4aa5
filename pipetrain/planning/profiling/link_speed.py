"""Bandwidth between two workers, measured with two processes and the messages of a run."""

import json
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch.multiprocessing import ProcessContext, start_processes

from pipetrain.engine.device_queue import queues, synchronize
from pipetrain.engine.errors import RunError
from pipetrain.engine.executors.messages.links import Links, given_bytes_per_s
from pipetrain.engine.executors.messages.neighbors import groups_of_neighbors
from pipetrain.engine.executors.messages.p2p import Incoming, Outgoing
from pipetrain.engine.executors.messages.transport import agreed_transport, set_environment, use_interface
from pipetrain.engine.schedules import Kind, Replicas
from pipetrain.planning.profile.profile import NO_MESSAGE_WORK, MessageCpuTime
from pipetrain.runner.training.components.machine import device_at

_LARGE, _SMALL = 2**22, 2**10
_WARM_UPS, _REPEATS = 3, 20
_DEADLINE_SECONDS = 120.0


@dataclass(frozen=True)
class LinkSpeed:
    """Bandwidth between two workers, and the work of each end of a message on its core."""

    bytes_per_s: float
    message_work: MessageCpuTime


def measured_link(device: str) -> LinkSpeed:
    """Speed of messages between two workers.

    A large one and a small one go back and forth, as activations and gradients do: over Gloo and the loopback interface
    on the CPU or if two workers would share a CUDA device, otherwise over NCCL from device to device. The time of the
    cores is measured on the CPU alone.

    Raises:
        RunError: the workers do not finish in time, for example because they cannot connect.
    """
    with tempfile.TemporaryDirectory() as folder:
        workers = start_processes(_worker, args=(folder, device), nprocs=2, start_method="spawn", join=False)
        _join(workers)
        ends = [json.loads(_result(folder, rank).read_text()) for rank in (0, 1)]
    (large_s, _), _ = ends[0]
    large_core_s, small_core_s = (statistics.fmean(end[size][1] for end in ends) for size in (0, 1))
    per_byte = max(0.0, large_core_s - small_core_s) / (_LARGE - _SMALL)
    work = MessageCpuTime(small_core_s, per_byte) if device == "cpu" else NO_MESSAGE_WORK
    return LinkSpeed(_LARGE / large_s, work)


def _allowed_s() -> float:
    """Seconds that the workers may take, including every message over slowed links."""
    slowed = given_bytes_per_s()
    return _DEADLINE_SECONDS + (0.0 if slowed is None else 2 * (_WARM_UPS + _REPEATS) * (_LARGE + _SMALL) / slowed)


def _join(workers: ProcessContext) -> None:
    """Waits for the workers, and ends them when their time is up: a worker that waits for its peer would never end."""
    deadline = time.monotonic() + (allowed_s := _allowed_s())
    while not workers.join(timeout=max(0.0, deadline - time.monotonic())):
        if time.monotonic() >= deadline:
            for process in workers.processes:
                process.kill()
                process.join()
            raise RunError(
                f"two workers did not measure their connection within {allowed_s:g} s; planner.bandwidth=false "
                "measures none, and topology.gigabytes_per_s takes a bandwidth that you know"
            )


def _result(folder: str, rank: int) -> Path:
    return Path(folder, f"end_{rank}.json")


def _worker(rank: int, folder: str, kind: str) -> None:
    torch.set_num_threads(1)
    device, links = _join_links(rank, kind, folder)
    groups = groups_of_neighbors(Replicas.one_each(2), links)
    ways = (Kind.FORWARD, Kind.BACKWARD) if rank == 0 else (Kind.BACKWARD, Kind.FORWARD)
    to, back = (links.to(1 - rank, 1 - rank, groups[(0, 1), way]) for way in ways)
    outgoing, incoming = Outgoing(to, "a probe"), Incoming(back, "a probe")
    incoming.expect([size for size in (_LARGE, _SMALL) for _ in range(_WARM_UPS + _REPEATS)])
    took = []
    for size in (_LARGE, _SMALL):
        probe = torch.zeros(size, dtype=torch.uint8, device=device)
        wall, core = [], []
        for _ in range(_WARM_UPS + _REPEATS):
            began, worked = time.perf_counter(), time.process_time()
            if rank == 0:
                outgoing.send(size, (probe,))
                incoming.take()
            else:
                outgoing.send(size, incoming.take())
            synchronize(device)
            wall.append(time.perf_counter() - began)
            core.append(time.process_time() - worked)
        # Each pass is a message in either direction. The work of one message is partly done during the next, so that
        # only the sum of all is right.
        took.append((statistics.median(wall[_WARM_UPS:]) / 2, statistics.fmean(core[_WARM_UPS:]) / 2))
    outgoing.settle(0)
    _result(folder, rank).write_text(json.dumps(took))
    dist.destroy_process_group()


def _join_links(rank: int, kind: str, folder: str) -> tuple[torch.device, Links]:
    """The device of a worker, and its links to the other one, which calls it with the same folder."""
    set_environment(kind)
    use_interface()
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    device = device_at(kind, rank)
    if queues(device):
        torch.get_device_module(device).set_device(device)
    return device, Links(agreed_transport(device))
