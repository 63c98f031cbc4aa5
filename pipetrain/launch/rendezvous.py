"""Rendezvous of the processes of a run: the store, the name of their start, and the process group."""

import os
import socket
import time
import uuid
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path

import torch.distributed as dist
from torch.distributed import Store

from pipetrain.executors.messages import control, loopback
from pipetrain.executors.messages.transport import NEVER, Transport, agreed_transport, set_environment
from pipetrain.launch import master
from pipetrain.run.builders.machine import device_at
from pipetrain.run.job import Job
from pipetrain.schedules import Placement
from pipetrain.tracking.run_directory import RunDirectory

START = "PIPETRAIN_START"
"""Environment variable with the name that our launcher gives a start of the workers."""
_PAUSE_SECONDS = 0.01


def negotiate_start_name(store: Store, rank: int, num_processes: int) -> str:
    """Unique name of this start of the processes, chosen by rank 0; waits for the other processes.

    torchrun starts all processes again when one has failed, and leaves them the store of before, with the addresses of
    those that are gone. Its count of restarts differs between machines. So every other rank publishes its own key,
    and only accepts an answer to that key.

    Args:
        store: where they meet; may hold what earlier starts have left.
        rank: of this process.
        num_processes: how many there are.
    """
    own = uuid.uuid4().hex
    if rank == 0:
        _give(store, own, range(1, num_processes))
        return own
    store.set(_call(rank), own)
    while not (answer := _value(store, _answer(rank))).startswith(own):
        time.sleep(_PAUSE_SECONDS)
    name = answer.removeprefix(own)
    store.set(_taken(name, rank), "1")
    return name


def _give(store: Store, name: str, ranks: Collection[int]) -> None:
    """Answers all calls, those of processes that are gone as well, until every process has taken the name."""
    while not store.check([_taken(name, rank) for rank in ranks]):
        for rank in ranks:
            if call := _value(store, _call(rank)):
                store.set(_answer(rank), call + name)
        time.sleep(_PAUSE_SECONDS)


def _value(store: Store, key: str) -> str:
    return store.get(key).decode() if store.check([key]) else ""


def _call(rank: int) -> str:
    return f"pipetrain/call/{rank}"


def _answer(rank: int) -> str:
    return f"pipetrain/answer/{rank}"


def _taken(name: str, rank: int) -> str:
    return f"pipetrain/taken/{name}/{rank}"


@dataclass(frozen=True)
class ProcessEnvironment:
    """Place of a worker process in the run.

    Attributes:
        rank: its number.
        start: what all processes call this start of them.
        transport: of tensors between the processes.
        placement: which process has which stages.
    """

    rank: int
    start: str
    transport: Transport
    placement: Placement

    @property
    def stages(self) -> tuple[int, ...]:
        """The stages of this process."""
        return tuple(self.placement.stages_of[self.rank])

    @property
    def has_last_stage(self) -> bool:
        """True if this process has the last stage, and so records the run."""
        return self.rank == self.placement.of_last_stage


def join(job: Job) -> tuple[ProcessEnvironment, Job]:
    """Joins the process group of a run that a launcher started; the job as all processes agree on it.

    Raises:
        RunError: the first process cannot be reached.
    """
    rank = int(os.environ["RANK"])
    set_environment(job.device)
    if os.environ.get("LOCAL_WORLD_SIZE") == os.environ.get("WORLD_SIZE"):
        loopback.use()
    else:
        master.wait_for_master(job.placement.name(rank))
        if address := master.local_address():  # the machine's own name may lead to another one, or nowhere
            loopback.use(address)
    device = device_at(job.device, int(os.environ.get("LOCAL_RANK", rank)))
    store = _connect(hosts=rank == 0 and not master.is_torchruns())
    size = job.placement.num_processes
    start = os.environ.get(START) or negotiate_start_name(store, rank, size)
    dist.init_process_group("gloo", store=dist.PrefixStore(start, store), rank=rank, world_size=size, timeout=NEVER)
    job = _agreed_job(job)
    return ProcessEnvironment(rank, start, agreed_transport(device), job.placement), job


def connect_monitoring_store(start: str) -> Store:
    """Another connection to the store, for the watching thread: a request on one connection blocks the next.

    Args:
        start: what all processes call this start of them.
    """
    return monitoring_store(start, _connect())


def monitoring_store(start: str, store: Store) -> Store:
    """The part of a store in which the processes of a start, and their launcher, monitor each other."""
    return dist.PrefixStore(f"pipetrain/{start}", store)


def loopback_store() -> dist.TCPStore:
    """A store that this process hosts at the loopback address alone; torch's default is every interface."""
    listener = socket.create_server((loopback.ADDRESS, 0))
    port = listener.getsockname()[1]
    return dist.TCPStore(
        loopback.ADDRESS, port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach()
    )


def restarted() -> bool:
    """True if torchrun, whose store outlives a worker, has started rank 0, which is this process, before."""
    return _connect().add("pipetrain/starts", 1) > 1


def _connect(*, hosts: bool = False) -> Store:
    host, port = master.address()
    return dist.TCPStore(host, port, is_master=hosts, timeout=NEVER, wait_for_workers=False, multi_tenant=True)


def _agreed_job(job: Job) -> Job:
    """The job with rank 0's run directory: workers that an outer launcher started have each named one."""
    found = [str(job.run), str(job.resume or ""), job.finished]
    run, resume, finished = control.all_gather_json(found)[0]
    return replace(job, run=RunDirectory(Path(run)), resume=Path(resume) if resume else None, finished=finished)
