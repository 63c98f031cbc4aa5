"""Child processes of the GPU check, each with a deadline, and comparisons of runs by the command line."""

import contextlib
import itertools
import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import pipetrain

FAILED = "FAILED"
"""Beginning of a line of the report about a failure."""
EXACT = ("deterministic=true", "train.tf32=false")

_PROBES = "pipetrain.commands.gpu_check.probes"
_NOT_INHERITED = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "COLUMNS")
_COMMON = (
    "threads=1", "checkpoint.every_epochs=0", "launch.hang_timeout=20", "launch.start_timeout=60",
    "hydra.sweep.subdir=${hydra.job.num}",
)  # fmt: skip
_TOLERANCE = 1e-3
_LOG_LINES = 4

Summary = Mapping[str, Any]
Varied = Mapping[str, Sequence[str]]
"""Setting -> its values in the runs of a sweep."""


class CheckError(Exception):
    """A check failed; the message says how."""


@dataclass
class Machine:
    """The machine under test.

    Attributes:
        folder: for files of the checks.
        kind: of its devices, as torch names them.
        gpus: number of devices, as far as they were counted.
        starter: modules that start a child's own module.
        environment: variables of all children, in addition to this process's.
    """

    folder: Path
    kind: str = "cuda"
    gpus: int = 0
    starter: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    device: ClassVar[str] = "cuda"
    """The setting of runs, which the emulation takes for its own devices."""

    @property
    def emulated(self) -> bool:
        """True if the devices are emulated by the tests."""
        return bool(self.starter)

    def new_folder(self, name: str) -> Path:
        """A new folder for a check of this name."""
        folder = self.folder / f"{len([*self.folder.iterdir()])}-{name}"
        folder.mkdir()
        return folder

    def call(self, function: str, *calls: Sequence[object], seconds: float) -> list[Any]:
        """Results of a function of `probes`, each call in a child; the children run concurrently, as RANK 0, 1, ...

        Raises:
            CheckError: a child fails, or is late.
        """
        folder = self.new_folder(function)
        files = [folder / f"{rank}.json" for rank in range(len(calls))]
        words = [(_PROBES, function, json.dumps(call), str(file)) for call, file in zip(calls, files, strict=True)]
        self.execute(folder, *words, seconds=seconds)
        return [json.loads(file.read_text()) for file in files]

    def execute(
        self, folder: Path, *commands: Sequence[str], seconds: float, codes: Sequence[int] = (0,), **environment: str
    ) -> str:
        """Runs Python modules concurrently, each in its own process group; returns what they printed last.

        A failure of one ends all of them. Workers end with the process that started them.

        Args:
            folder: working directory, and place of the logs.
            commands: a module and its arguments.
            seconds: deadline of all commands together.
            codes: permitted exit codes.
            environment: further variables.

        Raises:
            CheckError: a command ended with another code, or is late.
        """
        path = [str(Path(pipetrain.__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
        inherited = {name: value for name, value in os.environ.items() if name not in _NOT_INHERITED}
        variables = {"PYTHONPATH": os.pathsep.join(path), "PYTHONUNBUFFERED": "1", **self.environment, **environment}
        deadline = time.monotonic() + seconds
        logs = [folder / f"{rank}.log" for rank in range(len(commands))]
        with contextlib.ExitStack() as children:
            running = {}
            for rank, (words, log) in enumerate(zip(commands, logs, strict=True)):
                of_rank = {"RANK": str(rank)} if commands[1:] else {}
                with log.open("w") as output:
                    child = subprocess.Popen(
                        [sys.executable, "-m", *self.starter, *words], stdin=subprocess.DEVNULL, stdout=output,
                        stderr=subprocess.STDOUT, cwd=folder, env={**inherited, **variables, **of_rank},
                        start_new_session=True,
                    )  # fmt: skip
                running[child] = log
                children.callback(_kill, child)
            while running and time.monotonic() < deadline:
                for child in [child for child in running if child.poll() is not None]:
                    log = running.pop(child)
                    if (code := child.returncode) not in codes:
                        how = f"exit code {code}" if code >= 0 else f"ended by {signal.Signals(-code).name}"
                        raise CheckError(f"{how}: {_last_lines(log)}")
                time.sleep(0.02)
            if running:
                printed = "\n".join(_last_lines(log, 2 if len(running) > 1 else 6) for log in running.values())
                late = f"did not end within {seconds:g} s and was killed"
                raise CheckError(f"{late}; the last that it printed: {printed}")
        return "\n".join(map(_last_lines, logs))


def _kill(child: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def _last_lines(log: Path, count: int = 6) -> str:
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return "\n".join(lines[-count:]) or "(it printed nothing)"


def attempt(part: str, checks: Iterable[str]) -> Iterator[str]:
    """Lines of a part of a step; an exception ends the part with a line about it."""
    began = time.monotonic()
    try:
        yield from checks
    except Exception as error:
        cause = str(error) if isinstance(error, CheckError) else f"{type(error).__name__}: {error}"
        yield f"{FAILED}: {part}, after {time.monotonic() - began:.1f} s: {cause}"


def sweep(
    machine: Machine, settings: Sequence[str], varied: Varied, *, seconds: float, **environment: str
) -> dict[tuple[str, ...], Summary]:
    """Summaries of the runs of a sweep, by their values of `varied`; `status` and `reason` describe failures.

    Raises:
        CheckError: the sweep is late, or a run has no summary.
    """
    folder = machine.new_folder("sweep")
    words = [f"{name}={','.join(values)}" for name, values in varied.items()]
    # a setting that is given twice would change the order of the runs
    fixed = [each for each in (f"device={machine.device}", *_COMMON, *settings) if each.partition("=")[0] not in varied]
    command = ("pipetrain", "run", f"hydra.sweep.dir={folder}", *fixed, *words, "--multirun")
    printed = machine.execute(folder, command, seconds=seconds, codes=(0, 1), **environment)
    found = {}
    for number, values in enumerate(itertools.product(*varied.values())):
        path = folder / str(number) / "summary.json"
        if not path.exists():
            raise CheckError(f"{' '.join(values)} wrote no summary: {printed}")
        found[values] = json.loads(path.read_text()) | {"folder": str(path.parent)}
    return found


def compare_with_simulation(
    machine: Machine, settings: Sequence[str], varied: Varied, *, seconds: float, **environment: str
) -> Iterator[str]:
    """Lines about distributed runs, compared with the same runs in one process; arguments as of `sweep`.

    If an operation has no deterministic form, the runs are repeated without, and their losses are compared.
    """
    both = {"executor": ["simulated", "distributed"], **varied}
    found = sweep(machine, [*settings, *EXACT], both, seconds=seconds, **environment)
    refused = [each["reason"] for each in found.values() if "deterministic" in str(each.get("reason"))]
    if refused:
        yield f"not bit for bit: {refused[0]}"
        found = sweep(machine, settings, both, seconds=seconds, **environment)
    failures, transports = {}, set()
    for values in itertools.product(*varied.values()):
        name, distributed = " ".join(values), found["distributed", *values]
        failures[name] = differences(name, distributed, found["simulated", *values], bits=not refused)
        transports.add(f"{distributed.get('transport')} ({distributed.get('transport_reason')})")
    what = "losses" if refused else "bits"
    yield from verdict(f"{what} of the simulation over {', '.join(sorted(transports))}", failures)


def verdict(holds: str, failures: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """The failures of each run or pair of runs, by its name, and a line with the names of those without any."""
    for each in failures.values():
        yield from each
    if passed := [name for name, each in failures.items() if not each]:
        yield f"ok: {holds}: {', '.join(passed)}"


def differences(name: str, one: Summary, other: Summary, *, bits: bool, rel: float = _TOLERANCE) -> list[str]:
    """Failures of two runs that should complete and agree, in all bits or in the final loss within a tolerance."""
    if failures := unfinished({f"{name}, {run.get('executor')}": run for run in (one, other)}):
        return failures
    losses = one["final"]["loss"], other["final"]["loss"]
    if bits:
        differ = [field for field in ("loss_sha256", "weights_sha256") if one[field] != other[field]]
    else:
        differ = [] if math.isclose(*losses, rel_tol=rel) else [f"final loss (by more than {rel:g})"]
    text = f"{FAILED}: {name}: {' and '.join(differ)} differ; final losses {losses[0]!r} and {losses[1]!r}"
    return [text] if differ else []


def unfinished(found: Mapping[str, Summary]) -> list[str]:
    """Failures of runs that did not complete, with the last lines of their processes."""
    failures = []
    for name, run in found.items():
        if run["status"] == "completed":
            continue
        failures.append(f"{FAILED}: {name}: {run['status']}: {run.get('reason')}")
        for log in sorted(Path(run["folder"]).glob("logs/**/stderr.log")):
            lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
            failures += [f"process {log.parent.name}: {line}" for line in lines[-_LOG_LINES:]]
    return failures
