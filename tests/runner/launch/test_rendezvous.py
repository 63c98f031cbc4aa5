"""All processes of a start call it the same, and no other start so."""

import os
import re
import shutil
import signal
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from process_tree import children, is_alive, workers
from support.cli import arguments, environment
from torch.distributed import HashStore

from pipetrain.runner.launch import rendezvous
from pipetrain.runner.launch.rendezvous import addresses, negotiate_start_name


def names(store, ranks, num_processes=3):
    with ThreadPoolExecutor() as pool:
        return [*pool.map(lambda rank: negotiate_start_name(store, rank, num_processes), ranks)]


@pytest.mark.parametrize("ranks", [(0, 1, 2), (2, 1, 0)])
def test_processes_of_each_start_have_new_names_in_kept_store(ranks):
    store = HashStore()
    first, second = names(store, ranks), names(store, ranks)
    assert len({*first}) == len({*second}) == 1
    assert first[0] != second[0]


def test_calls_of_gone_processes_do_not_block_agreement():
    store = HashStore()
    for rank in (1, 2):
        store.set(f"pipetrain/call/{rank}", "gone")
        store.set(f"pipetrain/answer/{rank}", "gonelong ago")
    assert len({*names(store, (0, 1, 2))}) == 1


def test_overwritten_call_is_made_again(monkeypatch):
    monkeypatch.setattr(rendezvous, "_CALL_SECONDS", 0.02)
    store = HashStore()
    with ThreadPoolExecutor() as pool:
        called = pool.submit(negotiate_start_name, store, 1, 2)
        while not store.check(["pipetrain/call/1"]):
            time.sleep(0.001)
        store.set("pipetrain/call/1", "")
        assert negotiate_start_name(store, 0, 2) == called.result()


def test_process_alone_names_its_start_itself():
    assert negotiate_start_name(HashStore(), 0, 1) != negotiate_start_name(HashStore(), 0, 1)


def test_processes_of_one_machine_find_each_other_by_a_file(tmp_path):
    one, other = addresses(tmp_path), addresses(tmp_path)
    one.set("rank 0", "port 7")
    assert other.get("rank 0") == b"port 7"


def nameless() -> list[str]:
    """What runs a command on a machine whose name does not resolve, where this user may have one."""
    start = ["unshare", "--uts", "bash", "-c", 'hostname nowhere-7q.invalid && exec "$@"', "bash"]
    allowed = shutil.which("unshare") and subprocess.run([*start, "true"], check=False, capture_output=True)
    return start if allowed and allowed.returncode == 0 else []


def listening(process: int) -> set[str]:
    """The addresses, in hexadecimal, at which a process listens."""
    sockets = {str(each.readlink()) for each in Path(f"/proc/{process}/fd").iterdir() if each.is_symlink()}
    inodes = {found[1] for each in sockets if (found := re.fullmatch(r"socket:\[(\d+)\]", each))}
    lines = [line.split() for table in ("tcp", "tcp6") for line in Path(f"/proc/net/{table}").read_text().splitlines()]
    return {line[1].split(":")[0] for line in lines if line[3] == "0A" and line[9] in inodes}


@pytest.mark.slow
def test_local_run_listens_on_loopback_and_ends_with_fork_server(tmp_path):
    words = ("model=lenet5", "dataset.limit=160", "train.epochs=500", f"hydra.run.dir={tmp_path / 'run'}")
    run = subprocess.Popen(
        [*nameless(), *arguments("run", *words)], cwd=tmp_path, env=environment(), stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    metrics, deadline = tmp_path / "run" / "metrics.jsonl", time.monotonic() + 90
    while run.poll() is None and time.monotonic() < deadline and not metrics.exists():
        time.sleep(0.1)
    forked = workers(run.pid)
    assert len(forked) == 2
    assert {address for process in forked for address in listening(process)} == {"0100007F"}
    assert not listening(run.pid)
    [server] = [process for process in children(run.pid) if forked[0] in children(process)]
    os.kill(server, signal.SIGKILL)
    _, error = run.communicate(timeout=60)
    assert run.returncode == 1
    assert re.fullmatch(r"pipetrain: error: the process from which the workers are forked has ended; .*\n", error)
    assert not [process for process in forked if is_alive(process)]
