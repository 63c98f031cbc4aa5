"""Rendezvous of the processes of a run: the store, the name of their start, and the process group."""

import json
import math
import os
import time
import uuid
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

import torch.distributed as dist
from torch.distributed import Store

from pipetrain.data.files import strict_json
from pipetrain.engine import outer_launcher
from pipetrain.engine.executors.messages import control
from pipetrain.engine.executors.messages.transport import (
    NEVER,
    Transport,
    agreed_transport,
    set_environment,
    use_interface,
)
from pipetrain.runner.launch import master
from pipetrain.runner.launch.agreement import agree
from pipetrain.runner.launch.stores import Board, SignedStore, shared_key
from pipetrain.runner.tracking.run_directory import RunDirectory
from pipetrain.runner.training.checkpoint.initial_weights import InitialWeights
from pipetrain.runner.training.components.machine import device_at
from pipetrain.runner.training.job import Job

_ADDRESSES = "addresses"
_BEGUN = "pipetrain/begun"
_PAUSE_SECONDS = 0.01
_CALL_SECONDS = 0.5


def negotiate_start_name(store: Board, rank: int, num_processes: int) -> str:
    """Unique name of this start of the processes, chosen by rank 0; waits for the other processes.

    torchrun starts all processes again when one has failed, and leaves them the store of before, with the addresses of
    those that are gone. Its count of restarts differs between machines. So every other rank publishes a key of its
    own, and only accepts an answer to that key.
    """
    own, called_at = uuid.uuid4().hex, -math.inf
    pause = _PAUSE_SECONDS * (1 + num_processes // 16)  # more processes do not ask more often together
    if rank == 0:
        _answer_calls(store, own, range(1, num_processes))
        return own
    while not (answer := _value(store, f"pipetrain/answer/{rank}")).startswith(own):
        if time.monotonic() - called_at > _CALL_SECONDS:  # another program may have overwritten it
            called_at = time.monotonic()
            store.set(f"pipetrain/call/{rank}", own)
        time.sleep(pause)
    name = answer.removeprefix(own)
    store.set(f"pipetrain/taken/{name}/{rank}", "1")
    return name


def _answer_calls(store: Board, name: str, ranks: Collection[int]) -> None:
    """Answers all calls, even those of processes that are gone, until every process has taken the name."""
    left = set(ranks)
    while left := {rank for rank in left if not store.check([f"pipetrain/taken/{name}/{rank}"])}:
        for rank in left:
            if call := _value(store, f"pipetrain/call/{rank}"):
                store.set(f"pipetrain/answer/{rank}", call + name)
        time.sleep(_PAUSE_SECONDS)


def _value(store: Board, key: str) -> str:
    return store.get(key).decode(errors="replace") if store.check([key]) else ""


def join(job: Job, folder: Path | None = None) -> tuple[Job, str, Transport]:
    """Joins the process group of a run.

    Args:
        job: of this process.
        folder: private to the processes that our launcher started; None under an outer launcher.

    Returns:
        The job with the run directory of rank 0, what rank 0 loads, and notes on the meeting; the name of this start;
        the transport of tensors between processes.

    Raises:
        ConfigError: the processes differ in what they would train.
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
    size, store = job.placement.num_processes, addresses(folder)
    if folder is not None:
        start = folder.name
    else:
        start = negotiate_start_name(SignedStore(store, shared_key()), rank, size)
    dist.init_process_group("gloo", store=dist.PrefixStore(start, store), rank=rank, world_size=size, timeout=NEVER)
    # workers that an outer launcher started have each named a run directory
    initial, origin = job.initial_weights, job.provenance.get("initial_weights")
    loaded = initial and [str(initial.path), initial.sha256, dict(initial.sources), list(initial.notes)]
    found = [str(job.run), str(job.resume or ""), job.finished, loaded, origin]
    run, resume, finished, loaded, origin = control.broadcast_json(found)
    job = replace(
        job,
        run=RunDirectory(Path(run)),
        resume=Path(resume) if resume else None,
        finished=finished,
        initial_weights=loaded and InitialWeights(Path(loaded[0]), *loaded[1:]),
        provenance={**job.provenance, **({"initial_weights": origin} if origin else {})},
        notes=[*job.notes, *agree(job, rank)],
    )
    return job, start, agreed_transport(device)


def addresses(folder: Path | None) -> Store:
    """The store in which processes find each other: in a file if our launcher started them, else the outer launcher's.

    Processes that find each other by a file need no port for it, so no other user can tell them to connect elsewhere.
    """
    if folder is None:
        return _connect(hosts=outer_launcher.leads() and not master.is_torchruns())
    store = dist.FileStore(str(folder / _ADDRESSES), -1)
    store.set_timeout(NEVER)
    return store


def monitoring_board(start: str) -> SignedStore:
    """Where the processes of a start by an outer launcher monitor each other.

    It has a connection for the watching thread alone: a request on one connection blocks the next.
    """
    name = f"pipetrain/{start}"
    return SignedStore(dist.PrefixStore(name, _connect()), shared_key(), name)


def note_begun(job: Job) -> None:
    """Records the run directory for later starts by the same torchrun, whose store outlives this process."""
    if master.is_torchruns():
        noted = json.dumps([str(job.run.path.absolute()), job.resume and str(job.resume)])
        SignedStore(_connect(), shared_key()).set(_BEGUN, noted)


def last_begun() -> tuple[Path, Path | None] | None:
    """Run directory of the last start by the same torchrun, and the checkpoint it resumed; None if none has begun."""
    try:
        run, resume = strict_json.loads(_value(SignedStore(_connect(), shared_key()), _BEGUN))
        return Path(run), resume and Path(resume)
    except (ValueError, TypeError):  # nothing is noted, or not by a run
        return None


def _connect(*, hosts: bool = False) -> Store:
    host, port = master.address()
    return dist.TCPStore(host, port, is_master=hosts, timeout=NEVER, wait_for_workers=False, multi_tenant=True)
