"""Child processes of a check, each with a deadline, and runs by the command line."""

import contextlib
import itertools
import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import pipetrain

_INSIDE = "pipetrain.commands.gpu_check.inside"
_NOT_PASSED_ON = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "COLUMNS")
_LINES_OF_A_FAILURE = 6


class CheckError(Exception):
    """A failed check, in words."""


@dataclass(frozen=True)
class Machine:
    """The machine under test.

    Attributes:
        folder: for files of the checks.
        kind: of its devices, as torch calls them.
        gpus: how many there are.
        starter: modules that a child starts with, before its own.
        environment: variables of all children, in addition to this process's.
        patience: what deadlines are multiplied by.
    """

    folder: Path
    kind: str = "cuda"
    gpus: int = 0
    starter: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    patience: float = 1.0
    device: ClassVar[str] = "cuda"
    """The setting of runs, which the emulation takes for its own devices."""

    @property
    def emulated(self) -> bool:
        """True if the devices are the tests' emulation."""
        return bool(self.starter)

    def new_folder(self, name: str) -> Path:
        """A fresh folder for a check of this name."""
        folder = self.folder / f"{len([*self.folder.iterdir()])}-{name}"
        folder.mkdir()
        return folder

    def command(self, module: str, *words: str) -> list[str]:
        """Command line of a child that runs a Python module."""
        return [sys.executable, "-m", *self.starter, module, *words]

    def inside(self, function: str, *arguments: object, seconds: float, **environment: str) -> Any:
        """Result of a function of `inside` in a child."""
        return self.together([(function, arguments)], seconds=seconds, **environment)[0]

    def together(
        self, calls: Iterable[tuple[str, Sequence[object]]], *, seconds: float, **environment: str
    ) -> list[Any]:
        """Results of functions of `inside` in children that run concurrently, such as the ranks of a process group.

        Raises:
            CheckError: a child fails, or is late; it ends the others.
        """
        folder = self.new_folder("inside")
        children = []
        for rank, (function, arguments) in enumerate(calls := [*calls]):
            words = self.command(_INSIDE, function, json.dumps(arguments), str(folder / f"result-{rank}"))
            of_rank = {**self.environment, **environment, **({"RANK": str(rank)} if calls[1:] else {})}
            children.append(Child(words, folder / f"{rank}.log", of_rank))
        finish(children, seconds * self.patience)
        return [json.loads((folder / f"result-{rank}").read_text()) for rank in range(len(children))]


class Child:
    """A process with those that it starts, in its own process group, with its output in a file."""

    def __init__(self, words: Sequence[str], log: Path, environment: Mapping[str, str]) -> None:
        code = [str(Path(pipetrain.__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
        passed_on = {name: value for name, value in os.environ.items() if name not in _NOT_PASSED_ON}
        path = {"PYTHONPATH": os.pathsep.join(code), "PYTHONUNBUFFERED": "1"}
        self.log = log
        with log.open("w") as printed:
            self.process = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=printed, stderr=subprocess.STDOUT, cwd=log.parent,
                env={**passed_on, **path, **environment}, start_new_session=True,
            )  # fmt: skip

    def last_lines(self, count: int = _LINES_OF_A_FAILURE) -> str:
        """The end of what it printed."""
        lines = [line for line in self.log.read_text(errors="replace").splitlines() if line.strip()]
        return "\n".join(lines[-count:]) or "(it printed nothing)"

    def end(self) -> None:
        """Kills its process group; workers die with the process that started them."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def finish(children: Sequence[Child], seconds: float, codes: Sequence[int] = (0,)) -> None:
    """Waits for children to end, and ends all of them as soon as one fails.

    Args:
        children: the processes.
        seconds: that they have, all together.
        codes: with which they may end.

    Raises:
        CheckError: one ended with another code, or is late.
    """
    deadline = time.monotonic() + seconds
    try:
        for child in _ended(children, deadline):
            if child.process.returncode not in codes:
                raise CheckError(f"{_ending(child.process.returncode)}: {child.last_lines()}")
        late = [child for child in children if child.process.poll() is None]
        if late:
            did = "\n".join(child.last_lines(2 if late[1:] else _LINES_OF_A_FAILURE) for child in late)
            raise CheckError(f"did not end within {seconds:g} s and was killed; the last that it said: {did}")
    finally:
        for child in children:
            child.end()


def _ended(children: Sequence[Child], deadline: float) -> Iterator[Child]:
    """Children in the order in which they end, until the deadline."""
    running = [*children]
    while running and time.monotonic() < deadline:
        for child in [child for child in running if child.process.poll() is not None]:
            running.remove(child)
            yield child
        time.sleep(0.02)


def _ending(code: int) -> str:
    return f"exit code {code}" if code >= 0 else f"ended by {signal.Signals(-code).name}"


class Section:
    """Findings of a step of the check.

    Attributes:
        lines: in the order of the report.
        failures: how many of them there are.
    """

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.failures = 0

    def note(self, text: str) -> None:
        """Adds a line to the report."""
        self.lines += text.splitlines()

    def fail(self, text: str) -> None:
        """Adds what is broken."""
        self.failures += 1
        self.note(f"FAILED: {text}")

    def expect(self, holds: bool, text: str) -> None:  # noqa: FBT001 (what holds is what it is about)
        """Adds what was to hold, as a failure where it does not."""
        if holds:
            self.note(f"ok: {text}")
        else:
            self.fail(text)

    def attempt(self, what: str, check: Callable[[], None]) -> None:
        """Carries out a part of the step; if it fails, the next part still runs."""
        began = time.monotonic()
        try:
            check()
        except Exception as error:
            said = str(error) if isinstance(error, CheckError) else f"{type(error).__name__}: {error}"
            self.fail(f"{what}, after {time.monotonic() - began:.1f} s: {said}")


TINY = (
    "model=lenet5", "dataset=synthetic_images", "dataset.limit=160", "train.batch_size=32", "train.epochs=2",
)  # fmt: skip
"""Ten steps of a small model, with an evaluation in between."""
TEXT = ("train.epochs=1", "train.max_steps=6", "train.batch_size=8", "eval.decode=false")
EXACT = ("deterministic=true", "train.tf32=false")

_ALWAYS = (
    "threads=1", "checkpoint.every_epochs=0", "launch.hang_timeout=20", "launch.start_timeout=60",
    "hydra.sweep.subdir=${hydra.job.num}",
)  # fmt: skip
_TOLERANCE = 1e-3
_LOG_LINES = 4
_RUN_ENDED = (0, 1)

Summary = Mapping[str, Any]
Varied = Mapping[str, Sequence[str]]
"""Setting -> its values in the runs of a sweep."""


def sweep(
    machine: Machine, settings: Sequence[str], varied: Varied, *, seconds: float, **environment: str
) -> dict[tuple[str, ...], Summary]:
    """The summaries of runs by their values of what varies; a run that failed has `status` and `reason` in its own.

    Args:
        machine: where they run.
        settings: of all of them.
        varied: what they differ in.
        seconds: that all of them have.
        environment: of all of them.

    Raises:
        CheckError: they are late, or one has no summary.
    """
    folder = machine.new_folder("sweep")
    words = [f"{name}={','.join(values)}" for name, values in varied.items()]
    # a setting that stands twice would change the order of the runs
    fixed = [each for each in (f"device={machine.device}", *_ALWAYS, *settings) if each.partition("=")[0] not in varied]
    command = machine.command("pipetrain", "run", f"hydra.sweep.dir={folder}", *fixed, *words, "--multirun")
    child = Child(command, folder / "printed.log", {**machine.environment, **environment})
    finish([child], seconds * machine.patience, _RUN_ENDED)
    found = {}
    for number, values in enumerate(itertools.product(*varied.values())):
        path = folder / str(number) / "summary.json"
        if not path.exists():
            raise CheckError(f"{' '.join(values)} wrote no summary: {child.last_lines()}")
        found[values] = json.loads(path.read_text()) | {"folder": str(path.parent)}
    return found


def run(machine: Machine, folder: Path, *settings: str, seconds: float, **environment: str) -> tuple[Summary, str]:
    """The summary of one run, which may fail, and what it printed last."""
    settings = (f"device={machine.device}", *_ALWAYS, *settings)
    command = machine.command("pipetrain", "run", f"hydra.run.dir={folder / 'run'}", *settings)
    child = Child(command, folder / "printed.log", {**machine.environment, **environment})
    finish([child], seconds * machine.patience, _RUN_ENDED)
    path = folder / "run" / "summary.json"
    return (json.loads(path.read_text()) if path.exists() else {}), child.last_lines(2)


def as_simulated(
    machine: Machine, section: Section, settings: Sequence[str], varied: Varied, *, seconds: float, **environment: str
) -> None:
    """Checks that distributed runs have the bits of simulated ones; the rest of what varies is a run's name.

    Where an operation has no deterministic form, the runs are made again without, and compared in their losses.
    """
    both = {"executor": ["simulated", "distributed"], **varied}
    found = sweep(machine, [*settings, *EXACT], both, seconds=seconds, **environment)
    refused = [each["reason"] for each in found.values() if "deterministic" in str(each.get("reason"))]
    if refused:
        section.note(f"not bit for bit: {refused[0]}")
        found = sweep(machine, settings, both, seconds=seconds, **environment)
    agreeing, transports = [], set()
    for values in itertools.product(*varied.values()):
        name = " ".join(values)
        ours, theirs = found["distributed", *values], found["simulated", *values]
        if agree(section, name, ours, theirs, bits=not refused):
            agreeing.append(name)
        transports.add(f"{ours.get('transport')} ({ours.get('transport_reason')})")
    if agreeing:
        how = "losses" if refused else "bits"
        section.note(f"ok: {how} of the simulation over {', '.join(sorted(transports))}: {', '.join(agreeing)}")


def agree(section: Section, name: str, one: Summary, other: Summary, *, bits: bool, rel: float = _TOLERANCE) -> bool:
    """True if two runs completed and agree, in all bits or within a tolerance; differences are failures."""
    failed = [each for each in (one, other) if each["status"] != "completed"]
    if failed:
        for each in failed:
            section.fail(f"{name}, {each.get('executor')}: {how_it_ended(each)}")
        return False
    losses = one["final"]["loss"], other["final"]["loss"]
    if bits:
        differ = [field for field in ("loss_sha256", "weights_sha256") if one[field] != other[field]]
    else:
        differ = [] if math.isclose(*losses, rel_tol=rel) else [f"final loss (by more than {rel:g})"]
    if differ:
        section.fail(f"{name}: {' and '.join(differ)} differ; final losses {losses[0]!r} and {losses[1]!r}")
    return not differ


def how_it_ended(summary: Summary) -> str:
    """The status of a run that failed, with what its processes said last."""
    ends = []
    for log in sorted(Path(summary["folder"]).glob("logs/**/stderr.log")):
        lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
        ends += [f"process {log.parent.name}: {line}" for line in lines[-_LOG_LINES:]]
    return "\n".join([f"{summary['status']}: {summary.get('reason')}", *ends])


def completed(section: Section, found: Mapping[tuple[str, ...], Summary], what: str) -> bool:
    """True if all runs completed; each that did not is a failure."""
    failed = {name: each for name, each in found.items() if each["status"] != "completed"}
    for name, each in failed.items():
        section.fail(f"{what} {' '.join(name)}: {how_it_ended(each)}")
    return not failed
