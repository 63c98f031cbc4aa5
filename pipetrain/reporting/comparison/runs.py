"""The runs of a comparison: each in its own process and directory, several at a time, in limited time."""

import hashlib
import json
import multiprocessing
import os
import shutil
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import wait
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any, NamedTuple

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
_TICK_SECONDS = 1.0
_TAIL = 4096
"""Bytes that hold the last record of a run."""


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
        """Directory name, which ends in a hash of everything that the results depend on."""
        parts = (self.contender.key, *self.candidate, str(self.seed), str(self.tunes))
        code = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:10]
        return f"{self.contender.method}_seed={self.seed}-{code}"


class _Running(NamedTuple):
    """A run that is going on, and when it began, by `time.monotonic`."""

    planned: PlannedRun
    process: ForkServerProcess
    began_s: float


class Runs:
    """The runs in a folder, including runs of earlier calls.

    Args:
        folder: of their directories.
        jobs: number of runs at a time.
        end_s: moment, by `time.monotonic`, at which runs are stopped. None is started that would end later, as far as
            the speed of its contender is known.

    Raises:
        ConfigError: something in the folder leads out of it.
    """

    def __init__(self, folder: Path, jobs: int, end_s: float) -> None:
        check_own(folder)
        self._folder, self._jobs, self._end_s = folder, jobs, end_s
        self._results: dict[str, ComparedRun] = {}
        self._step_s: dict[str, float] = {}
        self._running: dict[Any, _Running] = {}
        """By the sentinels of their processes."""

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

    def carry_out(self, every: Sequence[PlannedRun], show: Callable[[], object]) -> bool:
        """Carries out those runs that have not ended; returns False if the time was over before all had.

        Args:
            every: in the order in which they start.
            show: called about every second.
        """
        # contenders that differ only in their predicted costs share their runs
        waiting = deque({planned.name: planned for planned in every if self.result(planned) is None}.values())
        missing = len(waiting)
        fork_server.start()
        try:
            while waiting or self._running:
                while waiting and len(self._running) < self._jobs:
                    self._start_in_time(waiting.popleft())
                show()
                for sentinel in wait([*self._running], _TICK_SECONDS) if self._running else ():
                    planned, process, _ = self._running.pop(sentinel)
                    process.join()
                    self._end(planned, self._left_by(planned, process.exitcode))
                    missing -= 1
                if time.monotonic() >= self._end_s:
                    self._stop()
        except BaseException:
            self._stop()
            raise
        return not missing

    def left_s(self, coming: Sequence[Contender]) -> float:
        """Seconds that runs of these contenders will take, with what is left of those that are going on.

        By the speed of earlier runs, of those that are going on, or else by the estimates, scaled to the known speeds.
        """
        step_s, done_s = dict(self._step_s), 0.0
        for planned, _, began_s in self._running.values():
            key, seconds = planned.contender.key, time.monotonic() - began_s
            if steps := _steps_of(self._folder / planned.name):
                done_s += steps * step_s.setdefault(key, seconds / steps)
        known = [each for each in coming if each.key in step_s]
        known_s = sum(each.steps * step_s[each.key] for each in known)
        scale = known_s / sum(each.estimated_s for each in known) if known else 1.0
        others_s = scale * sum(each.estimated_s for each in coming if each.key not in step_s)
        return min(max(0.0, known_s + others_s - done_s) / self._jobs, self._end_s - time.monotonic())

    @property
    def newest(self) -> PlannedRun | None:
        """The run that was started last of those that are going on."""
        return [*self._running.values()][-1].planned if self._running else None

    def _start_in_time(self, planned: PlannedRun) -> None:
        """Starts a run, unless it would end too late; one whose speed is not known yet is started."""
        seconds = planned.contender.steps * self._step_s.get(planned.contender.key, 0.0)
        if time.monotonic() + seconds < self._end_s:
            process = self._start(planned)
            self._running[process.sentinel] = _Running(planned, process, time.monotonic())

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
        """Ends the processes, and removes what those wrote that have no result."""
        for _, process, _ in self._running.values():
            process.terminate()
        for sentinel, (planned, process, _) in self._running.items():
            if not wait([sentinel], _STOP_SECONDS):
                process.kill()
            process.join()
            if (run := self._left_by(planned, process.exitcode)).status == FAILED:
                shutil.rmtree(run.path, ignore_errors=True)
                self._output(planned).unlink(missing_ok=True)
        self._running.clear()


def _steps_of(run: Path) -> int:
    """Steps that a run has recorded so far."""
    try:
        with RunDirectory(run).metrics.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL))
            *_, last, _ = file.read().split(b"\n")  # what is behind the last line end may be half a record
        return int(json.loads(last)["step"])
    except (OSError, ValueError, KeyError):
        return 0


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
