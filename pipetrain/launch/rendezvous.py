"""Rendezvous of the processes of a run: the store, the name of their start, and the process group."""

import json
import os
import socket
import time
import uuid
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

import torch.distributed as dist
from torch.distributed import Store

from pipetrain.executors.messages import control
from pipetrain.executors.messages.transport import (
    LOOPBACK,
    NEVER,
    Transport,
    agreed_transport,
    set_environment,
    use_interface,
)
from pipetrain.launch import master
from pipetrain.tracking.run_directory import RunDirectory
from pipetrain.training.builders.machine import device_at
from pipetrain.training.checkpoint.initial_weights import InitialWeights
from pipetrain.training.job import Job

START = "PIPETRAIN_START"
"""Environment variable with the name that our launcher gives a start of the workers."""
_BEGUN = "pipetrain/begun"
_PAUSE_SECONDS = 0.01


def negotiate_start_name(store: Store, rank: int, num_processes: int) -> str:
    """Unique name of this start of the processes, chosen by rank 0; waits for the other processes.

    torchrun starts all processes again when one has failed, and leaves them the store of before, with the addresses of
    those that are gone. Its count of restarts differs between machines. So every other rank publishes a key of its
    own, and only accepts an answer to that key.
    """
    own = uuid.uuid4().hex
    if rank == 0:
        _answer_calls(store, own, range(1, num_processes))
        return own
    store.set(f"pipetrain/call/{rank}", own)
    while not (answer := _value(store, f"pipetrain/answer/{rank}")).startswith(own):
        time.sleep(_PAUSE_SECONDS)
    name = answer.removeprefix(own)
    store.set(f"pipetrain/taken/{name}/{rank}", "1")
    return name


def _answer_calls(store: Store, name: str, ranks: Collection[int]) -> None:
    """Answers all calls, even those of processes that are gone, until every process has taken the name."""
    while not store.check([f"pipetrain/taken/{name}/{rank}" for rank in ranks]):
        for rank in ranks:
            if call := _value(store, f"pipetrain/call/{rank}"):
                store.set(f"pipetrain/answer/{rank}", call + name)
        time.sleep(_PAUSE_SECONDS)


def _value(store: Store, key: str) -> str:
    return store.get(key).decode() if store.check([key]) else ""


def join(job: Job) -> tuple[Job, str, Transport]:
    """Joins the process group of a run.

    Returns:
        The job with the run directory of rank 0, and what rank 0 loads; the name of this start; the transport of
        tensors between processes.

    Raises:
        RunError: the first process cannot be reached.
    """
    rank = int(os.environ["RANK"])
    set_environment(job.device)
    if os.environ.get("LOCAL_WORLD_SIZE") == os.environ.get("WORLD_SIZE"):
        use_interface()
    else:
        master.wait_for_master(job.placement.name(rank))
        if address := master.local_address():  # the machine's own name may lead to another one, or nowhere
            use_interface(address)
    device = device_at(job.device, int(os.environ.get("LOCAL_RANK", rank)))
    store = _connect(hosts=rank == 0 and not master.is_torchruns())
    size = job.placement.num_processes
    start = os.environ.get(START) or negotiate_start_name(store, rank, size)
    dist.init_process_group("gloo", store=dist.PrefixStore(start, store), rank=rank, world_size=size, timeout=NEVER)
    # workers that an outer launcher started have each named a run directory
    initial, origin = job.initial_weights, job.provenance.get("initial_weights")
    loaded = initial and [str(initial.path), initial.sha256, dict(initial.sources), list(initial.notes)]
    found = [str(job.run), str(job.resume or ""), job.finished, loaded, origin]
    run, resume, finished, loaded, origin = control.all_gather_json(found)[0]
    job = replace(
        job,
        run=RunDirectory(Path(run)),
        resume=Path(resume) if resume else None,
        finished=finished,
        initial_weights=loaded and InitialWeights(Path(loaded[0]), *loaded[1:]),
        provenance={**job.provenance, **({"initial_weights": origin} if origin else {})},
    )
    return job, start, agreed_transport(device)


def monitoring_store(start: str, store: Store | None = None) -> Store:
    """The part of a store in which the processes of a start, and their launcher, monitor each other.

    Workers have another connection for their watching thread: a request on one connection blocks the next.
    """
    return dist.PrefixStore(f"pipetrain/{start}", _connect() if store is None else store)


def loopback_store() -> dist.TCPStore:
    """A store that this process hosts at the loopback address alone; torch's default is every interface."""
    listener = socket.create_server((LOOPBACK, 0))
    port = listener.getsockname()[1]
    return dist.TCPStore(LOOPBACK, port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach())


def note_begun(job: Job) -> None:
    """Tells later starts by the same torchrun, whose store outlives this process, where this one writes."""
    if master.is_torchruns():
        _connect().set(_BEGUN, json.dumps([str(job.run.path.absolute()), job.resume and str(job.resume)]))


def last_begun() -> tuple[Path, Path | None] | None:
    """Run directory of the last start by the same torchrun, and the checkpoint it resumed; None if none has begun."""
    if not (noted := _value(_connect(), _BEGUN)):
        return None
    run, resume = json.loads(noted)
    return Path(run), resume and Path(resume)


def _connect(*, hosts: bool = False) -> Store:
    host, port = master.address()
    return dist.TCPStore(host, port, is_master=hosts, timeout=NEVER, wait_for_workers=False, multi_tenant=True)
