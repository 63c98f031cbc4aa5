"""Lists, store requests and connections of a run with 64, 512 and 4,096 workers.

`python benchmarks/scale.py`. Everything is counted or timed on this machine, with the code of a run and without its
training: the operation lists that a worker makes at the start of an interval, the requests and keys by which workers
under an outer launcher meet, beat and drain, the time until all know of a worker that hangs, and the rounds in which
neighbors connect. Workers are threads of this process with a real store of torch's each, as far as `--threads` goes;
beyond, one thread plays them all in turn. Prints the table of docs/clusters.md.
"""

import argparse
import datetime
import os
import resource
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from counting_store import CountingStore
from rows import machine, write
from torch.distributed import HashStore, Store, TCPStore

from pipetrain.engine.executors.admission_gate import AdmissionGate
from pipetrain.engine.executors.messages.neighbors import connection_order
from pipetrain.engine.executors.pipeline_rules import PipelineRules
from pipetrain.engine.methods.pipedream import PipeDream
from pipetrain.engine.program.validation import MOST_IN_FLIGHT
from pipetrain.engine.schedules import Operation, Replicas
from pipetrain.engine.schedules.one_f_one_b import OneFOneB
from pipetrain.runner.launch.consensus import DrainConsensus
from pipetrain.runner.launch.heartbeat import BEAT_SECONDS, Activity, Heartbeat, SuspendAwareClock
from pipetrain.runner.launch.peer_monitor import PeerMonitor
from pipetrain.runner.launch.stores import SignedStore
from pipetrain.runner.tracking.run_directory import RunDirectory

WORKERS = (64, 512, 4096)
MINIBATCHES = 5000
LONG = 1_000_000
PER_MACHINE = 8
BEATS = 4
HANG_SECONDS = 10.0


class Worker:
    """A worker that monitors its peers, without anything to train."""

    def __init__(self, process: int, count: int, store: Store, run: RunDirectory) -> None:
        self.process = process
        self.gate = AdmissionGate()
        self.store = CountingStore(store)
        self.board = SignedStore(self.store, bytes(32), "scale")  # type: ignore[arg-type]
        self.peers = PeerMonitor(process, count, self.board, run, HANG_SECONDS)
        self.consensus = DrainConsensus(process, count, self.gate)
        self._number = 0

    def beat(self) -> Heartbeat:
        """The next heartbeat."""
        self._number += 1
        host = f"machine {self.process // PER_MACHINE}"
        return Heartbeat(self.process, os.getpid(), host, self._number, 1, Activity(what="F3.0", starting=False))


def lists(count: int) -> dict[str, float]:
    """Operations in the lists that a worker in the middle makes for an interval, and in those that preflight checks."""
    rules, worker = PipelineRules(OneFOneB(), PipeDream(), count, 1), count // 2
    make, made = OneFOneB.operations, [0]

    def counted(*of: Any) -> list[Operation]:
        operations = make(*of)
        made[0] += len(operations)
        return operations

    found: dict[str, float] = {}
    for length, minibatches in (("", MINIBATCHES), ("long_", LONG)):
        began, made[0] = time.process_time(), 0
        with patch.object(OneFOneB, "operations", counted):
            rules.planned(worker, minibatches)
            for neighbor in (worker - 1, worker + 1):
                rules.worker_list(neighbor, minibatches)
        found |= {f"{length}operations": made[0], f"{length}seconds": round(time.process_time() - began, 2)}
    began = time.process_time()
    rules.check_lists()
    preflight = time.process_time() - began
    checked = sum(map(len, rules.lists(2 * min(rules.steady, MOST_IN_FLIGHT) + 1)))
    return {**found, "checked": checked, "check_seconds": round(preflight, 1)}


def rounds(counts: tuple[int, ...]) -> int:
    """Connections that a process waits for at most: each goes as soon as both ends have made those before it."""
    free = [0] * sum(counts)
    for pair in connection_order(Replicas(counts)):
        for _direction in range(2):
            free[pair[0]] = free[pair[1]] = max(free[pair[0]], free[pair[1]]) + 1
    return max(free)


def in_turn(count: int, run: RunDirectory) -> dict[str, float]:
    """Requests of workers that one thread plays, whose clock goes a beat at a time."""
    now, store = [0.0], HashStore()
    workers = [Worker(process, count, store, run) for process in range(count)]
    for worker in workers[1:]:
        worker.beat().publish(worker.board)
    for worker in workers:
        worker.peers.meet(worker.beat())
        worker.peers.close()
    met = [worker.store.taken() for worker in workers]
    for _ in range(BEATS):
        now[0] += BEAT_SECONDS
        with patch.object(SuspendAwareClock, "look", lambda _clock: now[0]):
            for worker in workers:
                worker.peers.exchange(worker.beat())
    beaten = [worker.store.taken() for worker in workers]
    workers[1].gate.end()
    for _ in range(3):
        for worker in workers:
            worker.consensus.proceed(worker.board)
    assert not any(worker.consensus.holds for worker in workers), "all have shut their gates"
    drained = [worker.store.taken() for worker in workers]
    return {
        "meet_requests": sum(each.requests for each in met) / len(met),
        "beat_requests": max(each.requests for each in beaten) / BEATS,
        "beat_keys": sum(each.keys for each in beaten) / BEATS / len(beaten),
        "drain_keys": sum(each.keys for each in drained) / len(drained),
    }


@contextmanager
def tcp_stores(count: int) -> Iterator[list[TCPStore]]:
    """A store that this process hosts, and a connection for each worker."""
    patience = datetime.timedelta(seconds=120)
    host = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=patience)
    yield [TCPStore("127.0.0.1", host.port, wait_for_workers=False, timeout=patience) for _ in range(count)]


def at_once(count: int, run: RunDirectory) -> dict[str, float]:
    """Seconds of meeting, of a beat of all, and until all know of a worker that hangs, of workers in threads."""
    with tcp_stores(count) as stores, ThreadPoolExecutor(count) as threads:
        workers = [Worker(process, count, store, run) for process, store in enumerate(stores)]

        def meet(worker: Worker) -> None:
            worker.peers.meet(worker.beat())
            worker.peers.close()

        began = time.monotonic()
        list(threads.map(meet, workers))
        met = time.monotonic() - began
        took = []
        for _ in range(BEATS):
            began = time.monotonic()
            list(threads.map(lambda worker: worker.peers.exchange(worker.beat()), workers))
            took.append(time.monotonic() - began)
        hangs, known, silent = time.monotonic(), [0.0] * count, count - 1
        stop = threading.Event()

        def live(worker: Worker) -> None:
            while not stop.wait(BEAT_SECONDS) and not worker.peers.unreachable:
                worker.peers.exchange(worker.beat())
            known[worker.process] = time.monotonic()

        list(threads.map(live, workers[:silent]))
        return {
            "meet_seconds": round(met, 2), "beat_seconds": round(sorted(took)[len(took) // 2], 3),
            "hang_seconds": round(max(known[:silent]) - hangs, 1),
        }  # fmt: skip


def table(rows: dict[str, dict[str, float]]) -> str:
    """The rows as the documentation shows them."""
    lines = [
        ("operations in the lists that a process makes for 5,000 minibatches", "operations", ",.0f"),
        ("processor seconds of that", "seconds", ".2f"),
        ("operations in those for 1,000,000 minibatches", "long_operations", ",.0f"),
        ("processor seconds of that", "long_seconds", ".2f"),
        ("operations that preflight validates", "checked", ",.0f"),
        ("processor seconds of that", "check_seconds", ".1f"),
        ("rounds of connections of neighbors", "rounds", ".0f"),
        ("requests per worker to meet", "meet_requests", ".1f"),
        ("requests per worker and heartbeat, at most", "beat_requests", ".0f"),
        ("keys in them, on average", "beat_keys", ".1f"),
        ("keys per worker in the requests of a drain", "drain_keys", ".1f"),
        ("seconds until all have met", "meet_seconds", ".1f"),
        ("seconds of a heartbeat of all at the same time", "beat_seconds", ".2f"),
        ("seconds until all know of a hang, `launch.hang_timeout=10`", "hang_seconds", ".1f"),
    ]
    made = [f"| workers, one for each stage | {' | '.join(f'{int(count):,}' for count in rows)} |"]
    made.append("| --- |" + " ---: |" * len(rows))
    for words, key, form in lines:
        cells = [format(row[key], form) if key in row else "" for row in rows.values()]
        made.append(f"| {words} | {' | '.join(cells)} |")
    return "\n".join(made)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--workers", type=int, nargs="+", default=WORKERS)
    parser.add_argument("--threads", type=int, default=512, help="most workers that are threads with a real store")
    parser.add_argument("--no-write", action="store_true")
    args = parser.parse_args()
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    rows: dict[str, dict[str, float]] = {}
    for count in args.workers:
        with tempfile.TemporaryDirectory() as folder:
            run = RunDirectory(Path(folder))
            row = {**lists(count), "rounds": rounds((1,) * count), **in_turn(count, run)}
            if count <= args.threads:
                row |= at_once(count, run)
        rows[str(count)] = row
        print(count, row, flush=True)
    print(table(rows))
    if not args.no_write:
        what, today = "Requests, operations and connections of many workers", datetime.date.today().isoformat()
        write({"what": what, "date": today, "machine": machine("cpu"), "rows": rows}, "scale")


if __name__ == "__main__":
    main()
