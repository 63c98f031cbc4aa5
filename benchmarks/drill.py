"""A fault drill: short runs in which something fails at a random moment, and what becomes of each.

Each must end with the bits of an undisturbed run, by itself or when it is resumed, or say in one line what is wrong.
A run of the same seed draws the same faults; when exactly a process is hit depends on the machine.

    python benchmarks/drill.py --faults 300 --seed 0
    python benchmarks/drill.py --only 17            # the fault of this number alone
"""

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

STEPS = 24
WORDS = (
    "model=lenet5", "dataset.limit=128", "train.batch_size=16", "train.epochs=3", "partition.stages=2", "device=cpu",
    "threads=1", "checkpoint.every_steps=4", "launch.hang_timeout=20",
)  # fmt: skip
_HASHES = ("status", "steps", "weights_sha256", "loss_sha256")
_PATIENCE_SECONDS = 240.0
_ORPHAN_SECONDS = 10.0


class Wrong(Exception):  # noqa: N818  (it is what the drill looks for)
    """A run that neither ended with the right bits nor said what was wrong."""


@dataclass(frozen=True)
class Drill:
    """One fault.

    Attributes:
        run: the directory of its run.
        chance: what is drawn of it.
        undisturbed: the directory of an undisturbed run of a method.
    """

    run: Path
    chance: random.Random
    undisturbed: Callable[[str], Path]

    def start(self, method: str, *more: str) -> "subprocess.Popen[str]":
        return started(self.run, method, *more)

    def moment(self, process: "subprocess.Popen[str]") -> None:
        """Waits for a random moment of a run."""
        step = self.chance.randrange(STEPS)
        metrics = self.run / "metrics.jsonl"
        wait_until(
            lambda: process.poll() is not None or (metrics.exists() and f'"step": {step},' in metrics.read_text())
        )
        time.sleep(self.chance.random() * 0.1)

    def same_bits(self, process: "subprocess.Popen[str]", method: str) -> str:
        """Waits for the end of a run, which must be that of an undisturbed one."""
        _, error = process.communicate(timeout=_PATIENCE_SECONDS)
        if process.returncode:
            raise Wrong(f"exit code {process.returncode}: {error}")
        found, expected = hashes(self.run), hashes(self.undisturbed(method))
        if found != expected:
            raise Wrong(f"other bits: {found}, not {expected}")
        return "same bits"

    def resumed(self, method: str) -> str:
        """Resumes a run that has ended early; its bits must be those of an undisturbed one."""
        return self.same_bits(self.start(method, "resume=auto"), method)


def worker_killed(drill: Drill) -> str:
    """A worker dies, and the run goes on by itself."""
    process = drill.start("pipedream", "launch.max_restarts=3")
    drill.moment(process)
    if found := workers(process.pid):
        os.kill(drill.chance.choice(found), signal.SIGKILL)
    return drill.same_bits(process, "pipedream")


def worker_stopped(drill: Drill) -> str:
    """A worker stands still for a moment."""
    process = drill.start("pipedream")
    drill.moment(process)
    if found := workers(process.pid):
        stopped = drill.chance.choice(found)
        os.kill(stopped, signal.SIGSTOP)
        time.sleep(drill.chance.random())
        os.kill(stopped, signal.SIGCONT)
    return drill.same_bits(process, "pipedream")


def launcher_killed(drill: Drill) -> str:
    """The command dies; its workers must end with it, and the run be resumed."""
    process = drill.start("pipedream")
    drill.moment(process)
    left = workers(process.pid)
    process.kill()
    process.communicate()
    wait_until(lambda: not any(map(is_alive, left)), _ORPHAN_SECONDS)
    return drill.resumed("pipedream")


def batch_system(drill: Drill) -> str:
    """A batch system ends the run, and starts it again; a synchronous one has the same bits wherever it drains."""
    process = drill.start("gpipe")
    drill.moment(process)
    process.send_signal(drill.chance.choice([signal.SIGTERM, signal.SIGUSR1]))
    _, error = process.communicate(timeout=_PATIENCE_SECONDS)
    if process.returncode not in (0, 75) or error:
        raise Wrong(f"exit code {process.returncode}: {error}")
    return drill.resumed("gpipe")


def byte_changed(drill: Drill) -> str:
    """A byte of a checkpoint changes; what is damaged must be named, and never be read."""
    shutil.copytree(drill.undisturbed("pipedream"), drill.run)
    last = max((drill.run / "checkpoints").iterdir())
    shutil.rmtree(last)
    (drill.run / "summary.json").unlink()
    file = drill.chance.choice([each for each in sorted((drill.run / "checkpoints").rglob("*")) if each.is_file()])
    content = bytearray(file.read_bytes())
    content[drill.chance.randrange(len(content))] ^= 1 << drill.chance.randrange(8)
    file.write_bytes(content)
    return drill.resumed("pipedream")


def disk_full(drill: Drill) -> str:
    """The disk of the run directory fills up; once there is room the run goes on."""
    drill.run.mkdir()
    size = drill.chance.randrange(600, 3000)
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}k", "tmpfs", drill.run], capture_output=True)
    if mounted.returncode:
        return "not allowed here"
    try:
        process = drill.start("pipedream")
        _, error = process.communicate(timeout=_PATIENCE_SECONDS)
        if process.returncode == 0:
            return drill.same_bits(process, "pipedream")
        if str(drill.run) not in error or error.count("\n") != 1:
            raise Wrong(f"exit code {process.returncode}: {error}")
        subprocess.run(["mount", "-o", "remount,size=64m", drill.run], check=True)
        return drill.resumed("pipedream")
    finally:
        subprocess.run(["umount", "-l", drill.run], check=True)


def word_garbled(drill: Drill) -> str:
    """A character of a setting is another one: refused in one line, or a run like any other."""
    words = [*WORDS, "method=pipedream"]
    index = drill.chance.randrange(len(words))
    place = drill.chance.randrange(len(words[index]))
    other = drill.chance.choice("=[]{}$#,.-_ 0x\u00e9\n'\"")
    words[index] = words[index][:place] + other + words[index][place + 1 :]
    command = [sys.executable, "-m", "pipetrain", "run", *words, "train.max_steps=2", f"hydra.run.dir={drill.run}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE_SECONDS)
    if done.returncode not in (0, 2) or (done.returncode == 2 and "Traceback" in done.stderr):
        raise Wrong(f"{words[index]!r}: exit code {done.returncode}: {done.stderr}")
    return "runs" if done.returncode == 0 else "refused"


FAULTS: tuple[Callable[[Drill], str], ...] = (
    worker_killed, launcher_killed, byte_changed, worker_stopped, batch_system, disk_full, word_garbled,
)  # fmt: skip


def started(run: Path, method: str, *more: str) -> "subprocess.Popen[str]":
    words = [*WORDS, f"method={method}", f"hydra.run.dir={run}", *more]
    command = [sys.executable, "-m", "pipetrain", "run", *words]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def hashes(run: Path) -> dict[str, Any]:
    summary = json.loads((run / "summary.json").read_text())
    return {name: summary[name] for name in _HASHES}


def wait_until(holds: Callable[[], bool], seconds: float = _PATIENCE_SECONDS) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            raise Wrong(f"waited in vain for {seconds:.0f} s")
        time.sleep(0.02)


def children(process: int) -> list[int]:
    try:
        return [int(each) for each in Path(f"/proc/{process}/task/{process}/children").read_text().split()]
    except OSError:
        return []


def workers(launcher: int) -> list[int]:
    """The workers of a run: the processes below its fork server."""
    return sorted(worker for server in children(launcher) for worker in children(server))


def is_alive(process: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{process}/status").read_text()
    except OSError:
        return False


def outcome(drill: Drill, fault: Callable[[Drill], str]) -> str:
    try:
        return fault(drill)
    except (Wrong, subprocess.TimeoutExpired) as error:
        return f"WRONG: {error}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, nargs="*", help="the numbers of the faults to repeat")
    options = parser.parse_args()
    numbers = range(options.faults) if options.only is None else options.only
    counts: Counter[tuple[str, str]] = Counter()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)

        @cache
        def undisturbed(method: str) -> Path:
            if started(folder / method, method, "executor=simulated").wait():
                sys.exit(f"the undisturbed run of {method} fails")
            return folder / method

        for number in numbers:
            fault = FAULTS[number % len(FAULTS)]
            drill = Drill(folder / f"{number}", random.Random(f"{options.seed}/{number}"), undisturbed)
            found = outcome(drill, fault)
            print(f"{number:4} {fault.__name__:16} {found}", flush=True)
            counts[fault.__name__, found.split(":")[0]] += 1
            if not found.startswith("WRONG"):
                shutil.rmtree(drill.run, ignore_errors=True)
    print("", *(f"{kind:16} {found:18} {count}" for (kind, found), count in sorted(counts.items())), sep="\n")
    sys.exit(any(found == "WRONG" for _, found in counts))


if __name__ == "__main__":
    main()
