"""The runs of a comparison: each in its own process and directory, several at a time, in limited time."""

import contextlib
import hashlib
import multiprocessing
import os
import re
import shutil
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from multiprocessing.connection import wait
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

from tqdm import tqdm

from pipetrain.engine.errors import ConfigError, DataError, RunError, one_line
from pipetrain.reporting.comparison.contenders import Contender
from pipetrain.reporting.comparison.halving import Candidate
from pipetrain.reporting.sweep.compared_run import ComparedRun
from pipetrain.reporting.sweep.run_reader import read
from pipetrain.runner.api.surroundings import kept
from pipetrain.runner.config.composition import without_section
from pipetrain.runner.launch import fork_server
from pipetrain.runner.launch.process_exit import exit_with_launcher
from pipetrain.runner.terminal.error_line import message
from pipetrain.runner.tracking.run_directory import RunDirectory, check_own

_FINISHED = ("completed", "diverged")
"""Statuses of runs that are not run again."""
FAILED = "failed"
_LONGEST_NAME = 60
_STOP_SECONDS = 10.0


@dataclass(frozen=True)
class PlannedRun:
    """A run of a contender.

    Attributes:
        candidate: the tuned settings.
        steps: number of its steps.
        tunes: True if it serves to choose the settings, and is evaluated only at its end.
    """

    contender: Contender
    candidate: Candidate
    steps: int
    seed: int
    tunes: bool = False

    @property
    def words(self) -> list[str]:
        """Its settings."""
        words = [*self.contender.run_words, *self.candidate, f"seed={self.seed}"]
        if self.steps < self.contender.steps:
            words.append(f"train.max_steps={self.steps}")
        if self.tunes:
            words.append(f"eval.every_epochs={self.steps}")  # only at the end
        return words

    @property
    def name(self) -> str:
        """Name of its directory, whose end stands for all that its results depend on."""
        parts = (self.contender.key, *self.candidate, str(self.seed), str(self.steps), str(self.tunes))
        shown = "_".join(
            [self.contender.method, *map(without_section, self.candidate), f"seed={self.seed}", f"steps={self.steps}"]
        )
        code = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:10]
        return f"{re.sub(r'[^A-Za-z0-9.=_-]+', '-', shown)[:_LONGEST_NAME]}-{code}"


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
        self.started = 0
        self._folder, self._jobs, self._end_s = folder, jobs, end_s
        self._results: dict[str, ComparedRun] = {}
        self._step_s: dict[str, float] = {}

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
        waiting = deque({planned.name: planned for planned in every if self.result(planned) is None}.values())
        running: dict[Any, tuple[ForkServerProcess, PlannedRun]] = {}  # by the sentinel of the process
        try:
            while waiting or running:
                while waiting and len(running) < self._jobs and self._has_time(waiting[0]):
                    process = self._start(waiting[0])
                    running[process.sentinel] = process, waiting.popleft()
                if not running:
                    return False
                for sentinel in wait(list(running)):
                    process, planned = running.pop(sentinel)
                    process.join()
                    self._end(planned, self._left_by(planned, process.exitcode))
                    ended(planned)
        finally:
            self._stop(running.values())
        return True

    def _has_time(self, planned: PlannedRun) -> bool:
        """True if the run would end in time, by the speed of others of its contender; the first one is just begun."""
        return time.monotonic() + planned.steps * self._step_s.get(planned.contender.key, 0.0) < self._end_s

    def _start(self, planned: PlannedRun) -> ForkServerProcess:
        path = self._folder / planned.name
        shutil.rmtree(path, ignore_errors=True)  # of a run that was interrupted or has failed
        self._folder.mkdir(parents=True, exist_ok=True)
        fork_server.start()
        process = multiprocessing.get_context(fork_server.METHOD).Process(
            target=_run, args=(planned.words, path, self._output(planned)), name=planned.name
        )
        with kept():  # the process does not import the program's main script
            process.start()
        self.started += 1
        return process

    def _output(self, planned: PlannedRun) -> Path:
        """File of what the process prints."""
        return self._folder / f"{planned.name}.log"

    def _left_by(self, planned: PlannedRun, code: int | None) -> ComparedRun:
        """The run whose process has ended."""
        shutil.rmtree(RunDirectory(self._folder / planned.name).checkpoints, ignore_errors=True)
        found = self._found(planned)
        output = self._output(planned)
        if found:
            output.unlink(missing_ok=True)
            return found
        said = output.read_text(encoding="utf-8", errors="replace").splitlines() if output.is_file() else []
        reason = said[-1].removeprefix("pipetrain: error: ") if said else f"its process ended with exit code {code}"
        return ComparedRun(self._folder / planned.name, FAILED, f"{one_line(reason)}; output in {output}")

    def _end(self, planned: PlannedRun, run: ComparedRun) -> None:
        self._results[planned.name] = run
        if run.numbers.get("steps"):
            self._step_s[planned.contender.key] = run.numbers["wall_s"] / run.numbers["steps"]

    def _stop(self, running: Collection[tuple[ForkServerProcess, PlannedRun]]) -> None:
        """Ends the processes of an interrupted comparison, and removes what their runs have begun to write."""
        for process, _ in running:
            process.terminate()
        for process, planned in running:
            process.join(_STOP_SECONDS)
            process.kill()
            process.join()
            shutil.rmtree(self._folder / planned.name, ignore_errors=True)
            self._output(planned).unlink(missing_ok=True)


def _run(words: Sequence[str], path: Path, output: Path) -> None:
    """Carries out a run in this process, which ends with it."""
    exit_with_launcher()
    with output.open("w", encoding="utf-8") as file:
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)
    from pipetrain.runner.api.runs import run

    tqdm.set_lock(threading.RLock())  # its own lock would outlive a process that is ended early
    with contextlib.suppress(KeyboardInterrupt):
        try:
            run(words, path=path, progress=False)
        except (ConfigError, DataError, RunError) as error:
            sys.exit(f"pipetrain: error: {message(error)}")
