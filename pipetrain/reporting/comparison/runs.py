"""The runs of a comparison: each in its own process and directory, several at a time, in limited time."""

import hashlib
import math
import multiprocessing
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing.connection import wait
from multiprocessing.context import ForkServerProcess
from pathlib import Path

from tqdm import tqdm

from pipetrain.engine.errors import ConfigError, DataError, RunError, one_line
from pipetrain.reporting.comparison.contenders import Contender
from pipetrain.reporting.comparison.tuning import Candidate
from pipetrain.reporting.sweep.compared_run import ComparedRun
from pipetrain.reporting.sweep.run_reader import read
from pipetrain.runner.api.surroundings import kept
from pipetrain.runner.launch import fork_server
from pipetrain.runner.launch.process_exit import exit_with_launcher
from pipetrain.runner.terminal.error_line import message
from pipetrain.runner.tracking.run_directory import RunDirectory, check_own

_FINISHED = ("completed", "diverged")
"""Statuses of runs that are not run again."""
FAILED = "failed"
_STOP_SECONDS = 10.0


@dataclass(frozen=True)
class PlannedRun:
    """A run of a contender.

    Attributes:
        candidate: the tuned settings.
        tunes: True if it serves to choose the settings, and is evaluated only at its end.
    """

    contender: Contender
    candidate: Candidate
    seed: int
    tunes: bool = False

    @property
    def words(self) -> list[str]:
        """Its settings."""
        at_its_end = [f"eval.every_epochs={self.contender.steps}"] if self.tunes else []
        return [*self.contender.words, *self.candidate, f"seed={self.seed}", *at_its_end]

    @property
    def name(self) -> str:
        """Name of its directory, whose end stands for all that its results depend on."""
        parts = (self.contender.key, *self.candidate, str(self.seed), str(self.tunes))
        code = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:10]
        return f"{self.contender.method}_seed={self.seed}-{code}"


class Runs:
    """The runs in a folder, including runs of earlier calls.

    Args:
        folder: of their directories.
        jobs: number of runs at a time.
        end_s: moment, by `time.monotonic`, after which no run is started.

    Raises:
        ConfigError: something in the folder leads out of it.
    """

    def __init__(self, folder: Path, jobs: int, end_s: float) -> None:
        check_own(folder)
        self._folder, self._jobs, self._end_s = folder, jobs, end_s
        self._results: dict[str, ComparedRun] = {}
        self._step_s: dict[str, float] = {}
        self._processes: dict[str, ForkServerProcess] = {}
        self._lock = threading.Lock()  # to start or join a process, as each start joins those that have ended

    def result(self, planned: PlannedRun) -> ComparedRun | None:
        """The run if it has ended: now, or with a result in an earlier call."""
        if planned.name not in self._results and (found := self._found(planned)):
            self._end(planned, found)
        return self._results.get(planned.name)

    def _found(self, planned: PlannedRun) -> ComparedRun | None:
        """The run that its directory holds, if it has a result."""
        directory = RunDirectory(self._folder / planned.name)
        found = read(directory, {}) if directory.summary.is_file() else None
        return found if found and found.status in _FINISHED else None

    def carry_out(self, every: Sequence[PlannedRun], ended: Callable[[PlannedRun], object]) -> bool:
        """Carries out those runs that have not ended; returns False if the time was over before all were started.

        Args:
            every: in the order in which they start.
            ended: called after each.
        """
        # contenders that differ only in their predicted costs share their runs
        waiting = {planned.name: planned for planned in every if self.result(planned) is None}
        fork_server.start()  # in this thread, as it ends with the one that starts it
        with ThreadPoolExecutor(self._jobs) as pool:
            running = {pool.submit(self._carry_out, planned): planned for planned in waiting.values()}
            try:
                for each in as_completed(running):
                    if each.result():
                        ended(running[each])
            except BaseException:
                self._stop()
                raise
        return all(each.result() for each in running)

    def _carry_out(self, planned: PlannedRun) -> bool:
        """Carries out a run in a process; returns False if the time is over."""
        with self._lock:
            # the first run of a contender, whose speed is not known, is just begun
            seconds = planned.contender.steps * self._step_s.get(planned.contender.key, 0.0)
            if time.monotonic() + seconds >= self._end_s:
                return False
            process = self._processes[planned.name] = self._start(planned)
        wait([process.sentinel])
        with self._lock:
            process.join()
            del self._processes[planned.name]
        run = self._left_by(planned, process.exitcode)
        if run.status == FAILED and self._end_s == -math.inf:
            shutil.rmtree(run.path, ignore_errors=True)
            self._output(planned).unlink(missing_ok=True)
            return False
        self._end(planned, run)
        return True

    def _start(self, planned: PlannedRun) -> ForkServerProcess:
        path = self._folder / planned.name
        shutil.rmtree(path, ignore_errors=True)  # of a run that was interrupted or has failed
        self._folder.mkdir(parents=True, exist_ok=True)
        process = multiprocessing.get_context(fork_server.METHOD).Process(
            target=_run, args=(planned.words, path, self._output(planned)), name=planned.name
        )
        with kept():  # the process does not import the program's main script
            process.start()
        return process

    def _output(self, planned: PlannedRun) -> Path:
        """File of what the process prints."""
        return self._folder / f"{planned.name}.log"

    def _left_by(self, planned: PlannedRun, code: int | None) -> ComparedRun:
        """The run whose process has ended."""
        path, output = self._folder / planned.name, self._output(planned)
        shutil.rmtree(RunDirectory(path).checkpoints, ignore_errors=True)
        if found := self._found(planned):
            output.unlink(missing_ok=True)
            return found
        said = output.read_text(encoding="utf-8", errors="replace").splitlines() if output.is_file() else []
        reason = said[-1].removeprefix("pipetrain: error: ") if said else f"its process ended with exit code {code}"
        return ComparedRun(path, FAILED, f"{one_line(reason)}; output in {output}")

    def _end(self, planned: PlannedRun, run: ComparedRun) -> None:
        self._results[planned.name] = run
        if run.numbers.get("steps"):
            self._step_s[planned.contender.key] = run.numbers["wall_s"] / run.numbers["steps"]

    def _stop(self) -> None:
        """Starts no further run, and ends the processes, whose threads then remove what was written."""
        with self._lock:
            self._end_s, running = -math.inf, [*self._processes.values()]
        for process in running:
            process.terminate()
        for process in running:
            if not wait([process.sentinel], _STOP_SECONDS):
                process.kill()


def _run(words: Sequence[str], path: Path, output: Path) -> None:
    """Carries out a run in this process, which ends with it."""
    exit_with_launcher()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of the terminal, for the comparison, which ends this process
    with output.open("w", encoding="utf-8") as file:
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)
    from pipetrain.runner.api.runs import run

    tqdm.set_lock(threading.RLock())  # its own lock would outlive a process that is ended early
    try:
        run(words, path=path, progress=False)
    except (ConfigError, DataError, RunError) as error:
        sys.exit(f"pipetrain: error: {message(error)}")
