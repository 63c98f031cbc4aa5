"""The faults of the drill: what fails in a run at a random moment, and what must become of it."""

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from drill_run import WORDS, Drill, Ends, Process, Wrong, checkpoints, command, ended, refused_or_done, wait_until
from process_tree import below, fork_servers, handles, is_alive, workers
from two_machines import Machine, NotAllowedError, two_machines

_ORPHAN_SECONDS = 10.0
_SYMBOLS = "=[]{}$#,.-_ 0x\u00e9\n'\""


def worker_killed(drill: Drill) -> str:
    """A worker dies, and the run goes on by itself."""
    process = drill.start("method=pipedream", "launch.max_restarts=3")
    drill.moment(process)
    if found := workers(process.pid):
        _send(drill.chance.choice(found), drill.chance.choice([signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT]))
    return drill.same_bits(process, "pipedream")


def launcher_killed(drill: Drill) -> str:
    """The command dies; its workers must end with it, and the run be resumed."""
    process = drill.start("method=pipedream", drill.executor())
    drill.moment(process)
    left = below(process.pid)
    process.kill()
    process.communicate()
    wait_until(lambda: not any(map(is_alive, left)), _ORPHAN_SECONDS)
    return drill.resumed("pipedream")


def byte_changed(drill: Drill) -> str:
    """A byte of a checkpoint changes; what is damaged must be named, and never be read."""
    shutil.copytree(drill.undisturbed("pipedream"), drill.run)
    shutil.rmtree(checkpoints(drill.run)[-1])
    (drill.run / "summary.json").unlink()
    _change_byte(drill, drill.chance.choice(_files(drill.run / "checkpoints")))
    return drill.resumed("pipedream")


def worker_stopped(drill: Drill) -> str:
    """A worker stands still for a moment."""
    process = drill.start("method=pipedream")
    drill.moment(process)
    if found := workers(process.pid):
        stopped = drill.chance.choice(found)
        _send(stopped, signal.SIGSTOP)
        time.sleep(drill.chance.random())
        _send(stopped, signal.SIGCONT)
    return drill.same_bits(process, "pipedream")


def batch_system(drill: Drill) -> str:
    """A batch system ends the run, and starts it again; a synchronous one has the same bits wherever it drains."""
    process = drill.start("method=gpipe", drill.executor())
    drill.moment(process)
    number = drill.chance.choice([signal.SIGTERM, signal.SIGUSR1])
    if process.poll() is None:
        tell = drill.chance.choice([os.kill, os.killpg])  # the command, or all of its processes
        tell(process.pid, number)
    code, error = ended(process)
    before_it_ran = code == -number and not (drill.run / "metrics.jsonl").exists()
    if (code not in (0, 75) and not before_it_ran) or error not in ("", _told(number)):
        raise Wrong(f"exit code {code}: {error}")
    return drill.resumed("gpipe")


def readers_killed(drill: Drill) -> str:
    """A process that reads samples dies, or the worker that it reads for, and the run goes on by itself."""
    process = drill.start("method=pipedream", "launch.max_restarts=3", "dataset.workers=2")
    drill.moment(process)
    found = workers(process.pid)
    readers = [reader for worker in found for reader in below(worker)]
    if targets := drill.chance.choice([readers or found, found]):
        _send(drill.chance.choice(targets), signal.SIGKILL)
    left = below(process.pid)
    what = drill.same_bits(process, "pipedream")
    wait_until(lambda: not any(map(is_alive, left)), _ORPHAN_SECONDS)
    return what


def readers_signalled(drill: Drill) -> str:
    """Sends one of the signals that end a run to all of its processes, data-loading workers included."""
    process = drill.start("method=gpipe", "dataset.workers=1", drill.executor())
    drill.moment(process)
    number = drill.chance.choice([signal.SIGTERM, signal.SIGUSR1, signal.SIGINT])
    if process.poll() is None:
        wait_until(lambda: handles(process.pid, number))
        os.killpg(process.pid, number)
    _check_interrupted(ended(process), number)
    return drill.resumed("gpipe")


def signal_at_an_end(drill: Drill) -> str:
    """A signal comes before the run begins, or after its summary is written."""
    process = drill.start("method=gpipe", drill.executor())
    number = drill.chance.choice([signal.SIGTERM, signal.SIGUSR1, signal.SIGINT, signal.SIGHUP])
    after = drill.chance.random() < 0.5
    wait_until(lambda: (drill.run / "summary.json").exists() if after else handles(process.pid, number))
    time.sleep(drill.chance.random() * 0.3)
    if process.poll() is None:
        process.send_signal(number)
    ends = ended(process)
    if after and ends != (0, ""):
        raise Wrong(f"completed, but exit code {ends[0]}: {ends[1]}")
    _check_interrupted(ends, number)
    return drill.resumed("gpipe")


def fork_server_stopped(drill: Drill) -> str:
    """Stops the process that workers are forked from, and never continues it."""
    process = drill.start("method=pipedream", "dataset.workers=1")
    drill.moment(process)
    for server in fork_servers(process.pid):
        _send(server, signal.SIGSTOP)
    return drill.same_bits(process, "pipedream")


def other_device_full(drill: Drill) -> str:
    """The disk under the output is full, which ends no run; or the memory that readers share, which is named."""
    words = command("run", *WORDS, "method=pipedream", f"hydra.run.dir={drill.run}")
    if drill.chance.random() < 0.5:
        process = drill.started(["sh", "-c", '"$@" > /dev/full', "sh", *words])
        code, error = ended(process)
        if code or error.count("\n") != 1 or "standard output" not in error:
            raise Wrong(f"exit code {code}: {error}")
        return drill.same_bits(process, "pipedream")
    full = "mount -t tmpfs -o size=64k tmpfs /dev/shm && head -c 65536 /dev/zero > /dev/shm/full && exec "
    process = drill.started(["unshare", "-m", "sh", "-c", f'{full} "$@"', "sh", *words, "dataset.workers=1"])
    code, error = ended(process)
    if "pipetrain" not in error:
        return "not allowed here"
    if code != 1 or error.count("\n") != 1 or "/dev/shm" not in error:
        raise Wrong(f"exit code {code}: {error}")
    return drill.resumed("pipedream")


def disk_full(drill: Drill) -> str:
    """The disk of the run directory fills up; once there is room the run goes on."""
    drill.run.mkdir()
    size = drill.chance.randrange(300, 3000)
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}k", "tmpfs", drill.run], capture_output=True)
    if mounted.returncode:
        return "not allowed here"
    try:
        process = drill.start("method=pipedream", drill.executor())
        code, error = ended(process)
        if code == 0:
            return drill.same_bits(process, "pipedream")
        if str(drill.run) not in error or error.count("\n") != 1:
            raise Wrong(f"exit code {code}: {error}")
        subprocess.run(["mount", "-o", "remount,size=64m", drill.run], check=True)
        return drill.resumed("pipedream")
    finally:
        subprocess.run(["umount", "-l", drill.run], check=True)


def word_garbled(drill: Drill) -> str:
    """A character of a setting is another one: refused in one line, or a run like any other."""
    words = [*WORDS, "method=pipedream", drill.executor()]
    index = drill.chance.randrange(len(words))
    place = drill.chance.randrange(len(words[index]))
    words[index] = words[index][:place] + drill.chance.choice(_SYMBOLS) + words[index][place + 1 :]
    process = drill.started(command("run", *words, "train.max_steps=2", f"hydra.run.dir={drill.run}"))
    try:
        return refused_or_done(ended(process))
    except Wrong as error:
        raise Wrong(f"{words[index]!r}: {error}") from None


def worker_hangs(drill: Drill) -> str:
    """A worker stands still for good, and the run goes on without it."""
    process = drill.start("method=pipedream", "launch.max_restarts=3", "launch.hang_timeout=5")
    drill.moment(process)
    if found := workers(process.pid):
        _send(drill.chance.choice(found), signal.SIGSTOP)
    return drill.same_bits(process, "pipedream")


def link_cut(drill: Drill) -> str:
    """The link between two machines is cut, for a moment or for good, in which case both of them must say so."""
    try:
        with two_machines() as machines:
            processes = [_on_machine(drill, machines, rank) for rank in range(2)]
            drill.moment(processes[0])
            machines[1].cut_off()
            if drill.chance.random() < 0.5:
                time.sleep(drill.chance.random() * 2)
                machines[1].connect_again()
            ends = [ended(process) for process in processes]
    except NotAllowedError:
        return "not allowed here"
    for code, error in ends:
        if code and (code not in (1, 70, 75) or error.count("pipetrain: error: ") != 1 or "Traceback" in error):
            raise Wrong(f"exit code {code}: {error}")
    if any(code for code, _ in ends):
        return drill.resumed("pipedream")
    return drill.same_bits(processes[0], "pipedream")


def config_garbled(drill: Drill) -> str:
    """A byte of a run's own configuration changes; whoever reads the run refuses it, or reads what is there."""
    shutil.copytree(drill.undisturbed("pipedream"), drill.run)
    _change_byte(drill, drill.run / "config.yaml")
    reads = drill.chance.choice([("eval",), ("timeline",), ("export", "-o", str(drill.run / "exported"))])
    return refused_or_done(ended(drill.started(command(*reads, str(drill.run)))))


FAULTS: tuple[Callable[[Drill], str], ...] = (
    worker_killed, launcher_killed, byte_changed, worker_stopped, batch_system, disk_full, word_garbled, worker_hangs,
    link_cut, config_garbled, readers_killed, readers_signalled, signal_at_an_end, fork_server_stopped,
    other_device_full,
)  # fmt: skip


def _send(process: int, number: signal.Signals) -> None:
    """Sends a signal to a process that was found, and may have ended since."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(process, number)


def _check_interrupted(ends: Ends, number: signal.Signals) -> None:
    """Checks how a command ended that a signal may have ended."""
    code, error = ends
    expected = 75 if number in (signal.SIGTERM, signal.SIGUSR1) else 130
    if code not in (0, expected) or error not in ("", _told(number)):
        raise Wrong(f"{number.name}, exit code {code}: {error}")


def _told(number: signal.Signals) -> str:
    """The last line of a command that a signal ended before its run began."""
    return f"pipetrain: interrupted by {number.name}\n"


def _on_machine(drill: Drill, machines: tuple[Machine, Machine], rank: int) -> Process:
    """The process of a rank, started as `srun` starts it."""
    limits = ("launch.hang_timeout=5", "launch.start_timeout=40")
    words = command("run", *WORDS, "method=pipedream", *limits, f"hydra.run.dir={drill.run}")
    return drill.started(
        machines[rank].command(*words),
        RANK=str(rank), WORLD_SIZE="2", LOCAL_RANK="0", LOCAL_WORLD_SIZE="1",
        MASTER_ADDR=machines[0].address, MASTER_PORT="29500",
    )  # fmt: skip


def _change_byte(drill: Drill, file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[drill.chance.randrange(len(content))] ^= 1 << drill.chance.randrange(8)
    file.write_bytes(content)


def _files(folder: Path) -> list[Path]:
    return sorted(each for each in folder.rglob("*") if each.is_file() and each.stat().st_size)
