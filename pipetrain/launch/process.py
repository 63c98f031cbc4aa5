"""A worker process among the others of its run."""

import os
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed import Store

from pipetrain.executors.messages import control, loopback
from pipetrain.executors.messages.transport import NEVER, Transport, agreed_transport, set_environment
from pipetrain.launch import master
from pipetrain.launch.start_name import agreed_name
from pipetrain.run.builders.machine import device_at
from pipetrain.run.job import Job
from pipetrain.schedules import Placement
from pipetrain.tracking.run_directory import RunDirectory


@dataclass(frozen=True)
class ProcessEnvironment:
    """Where a worker process stands.

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
    def device(self) -> torch.device:
        """Where it computes."""
        return self.transport.device

    @property
    def stages(self) -> tuple[int, ...]:
        """The stages of this process."""
        return tuple(self.placement.stages_of[self.rank])

    @property
    def replica(self) -> int:
        """The number of this process among those that have its stage."""
        return self.placement.replica_of(self.rank)

    @property
    def has_last_stage(self) -> bool:
        """Whether this process records the run."""
        return self.rank == self.placement.of_last_stage


def join(job: Job) -> tuple[ProcessEnvironment, Job]:
    """Joins the process group of a run that torch's launcher started; the job as all processes agree on it.

    Raises:
        RunError: the first process cannot be reached.
    """
    rank = int(os.environ["RANK"])
    set_environment(job.device)
    if os.environ.get("LOCAL_WORLD_SIZE") == os.environ.get("WORLD_SIZE"):
        loopback.use()
    else:
        master.reach(job.placement.name(rank))
        if address := master.address_towards():  # the machine's own name may lead to another one, or nowhere
            loopback.use(address)
    device = device_at(job.device, int(os.environ.get("LOCAL_RANK", rank)))
    store = _store(hosts=rank == 0 and not master.is_torchruns())
    size = job.placement.num_processes
    start = agreed_name(store, rank, size)
    dist.init_process_group("gloo", store=dist.PrefixStore(start, store), rank=rank, world_size=size, timeout=NEVER)
    job = _agreed(job)
    return ProcessEnvironment(rank, start, agreed_transport(device), job.placement), job


def own_store(start: str) -> Store:
    """A second connection to the store, for the watching thread alone: a request on one connection blocks the next.

    Args:
        start: what all processes call this start of them.
    """
    return dist.PrefixStore(f"pipetrain/{start}", _store())


def restarted() -> bool:
    """Whether torchrun, whose store outlives a worker, has started rank 0, which is this process, before."""
    return _store().add("pipetrain/starts", 1) > 1


def _store(*, hosts: bool = False) -> Store:
    host, port = master.address()
    return dist.TCPStore(host, port, is_master=hosts, timeout=NEVER, wait_for_workers=False, multi_tenant=True)


def _agreed(job: Job) -> Job:
    """Workers that an outer launcher started each named a run directory; rank 0's is that of all."""
    found = [str(job.run), str(job.resume or ""), job.finished]
    run, resume, finished = control.broadcast_json(found, source=0)
    return replace(job, run=RunDirectory(Path(run)), resume=Path(resume) if resume else None, finished=finished)
