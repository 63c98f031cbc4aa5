"""A short run in which something fails, and whether it ends with the bits of an undisturbed one."""

import contextlib
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

STEPS = 24
WORDS = (
    "model=lenet5", "dataset.limit=128", "train.batch_size=16", "train.epochs=3", "partition.stages=2", "device=cpu",
    "threads=1", "checkpoint.every_steps=4", "launch.hang_timeout=20",
)  # fmt: skip
PATIENCE_SECONDS = 480.0
_START_SECONDS = 8.0
_HASHES = ("status", "steps", "weights_sha256", "loss_sha256")

Process = subprocess.Popen[str]
Ends = tuple[int, str]
"""The exit code of a command, and what it wrote to its standard error."""


class Wrong(Exception):  # noqa: N818  (it is what the drill looks for)
    """A run that neither ended with the right bits nor said what was wrong."""


@dataclass(frozen=True)
class Drill:
    """One fault.

    Attributes:
        run: the directory of its run.
        chance: what is drawn of it.
        undisturbed: the directory of an undisturbed run of a method.
        words: settings of the run.
        moments: steps after which the fault may come; negative ones: while the run starts.
        executors: the executors to choose from, which have equal bits.
        processes: the commands that were started.
    """

    run: Path
    chance: random.Random
    undisturbed: Callable[[str], Path]
    words: Sequence[str] = WORDS
    moments: Sequence[int] = range(-STEPS // 4, STEPS)
    executors: Sequence[str] = ("distributed", "simulated")
    processes: list[Process] = field(default_factory=list)

    def executor(self) -> str:
        """A setting that changes no bits."""
        return f"executor={self.chance.choice(self.executors)}"

    def start(self, *words: str) -> Process:
        """Starts the run, with settings of the fault's own."""
        return self.started(command("run", *self.words, *words, f"hydra.run.dir={self.run}"))

    def started(self, words: list[str], **environment: str) -> Process:
        process = subprocess.Popen(
            words, env={**os.environ, **environment}, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
            start_new_session=True,
        )  # fmt: skip
        self.processes.append(process)
        return process

    def moment(self, process: Process) -> None:
        """Waits for a random moment of a run: while it starts, or about the end of a step."""
        step = self.chance.choice(self.moments)
        if step < 0:
            began, seconds = time.monotonic(), self.chance.random() * _START_SECONDS
            wait_until(lambda: self._is_at(0, process) or time.monotonic() > began + seconds)
        else:
            wait_until(lambda: self._is_at(step, process))
        time.sleep(self.chance.random() * 0.1)

    def _is_at(self, step: int, process: Process) -> bool:
        metrics = self.run / "metrics.jsonl"
        return process.poll() is not None or (metrics.exists() and f'"step": {step},' in metrics.read_text())

    def same_bits(self, process: Process, method: str) -> str:
        """Waits for the end of a run, which must be that of an undisturbed one."""
        code, error = ended(process)
        if code:
            raise Wrong(f"exit code {code}: {error}")
        found, expected = hashes(self.run), hashes(self.undisturbed(method))
        if found != expected:
            raise Wrong(f"other bits: {found}, not {expected}")
        return "same bits after a restart" if summary(self.run)["restarts"] else "same bits"

    def resumed(self, method: str) -> str:
        """Resumes a run that has ended early; its bits must be those of an undisturbed one."""
        before = checkpoints(self.run)
        self.same_bits(self.start(f"method={method}", self.executor(), "resume=auto"), method)
        return "same bits when resumed" if before else "same bits when begun anew"

    @contextlib.contextmanager
    def to_its_end(self) -> Iterator[None]:
        """Around the fault: no process outlives it."""
        try:
            yield
        finally:
            for process in self.processes:
                process.kill()
                process.wait()


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "pipetrain", *words]


def ended(process: Process) -> Ends:
    _, error = process.communicate(timeout=PATIENCE_SECONDS)
    return process.returncode, error


def refused_or_done(ends: Ends) -> str:
    """What became of a command that was given something wrong, which it must say in one line."""
    code, error = ends
    if code not in (0, 2) or (code == 2 and (error.count("\n") != 1 or "pipetrain: error: " not in error)):
        raise Wrong(f"exit code {code}: {error}")
    return "done" if code == 0 else "refused"


def summary(run: Path) -> dict[str, Any]:
    stored: dict[str, Any] = json.loads((run / "summary.json").read_text())
    return stored


def hashes(run: Path) -> dict[str, Any]:
    return {name: summary(run)[name] for name in _HASHES}


def checkpoints(run: Path) -> list[Path]:
    return sorted((run / "checkpoints").glob("step-*"))


def wait_until(holds: Callable[[], bool], seconds: float = PATIENCE_SECONDS) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            raise Wrong(f"waited in vain for {seconds:.0f} s")
        time.sleep(0.02)
