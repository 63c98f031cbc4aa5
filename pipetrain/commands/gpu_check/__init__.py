"""`pipetrain doctor --gpu`: checks on the GPUs of this machine that pipetrain works, as one report to paste."""

import datetime
import json
import platform
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from typing_extensions import override

import pipetrain
from pipetrain.commands.gpu_check.runs import FAILED, Machine, attempt
from pipetrain.commands.gpu_check.steps import NO_GPU, STEPS, environment
from pipetrain.errors import ConfigError, ExitCode

_EMULATION = """\
EMULATED: each process has a GPU that its own threads pretend, and NCCL's rules between them. That shows orders of
messages, deadlocks and missing waits. It cannot show hardware queues, multiprocessors, drivers, speed, or what kernels
of CUDA's compute."""
_EMULATED_GPUS = 3
_SECONDS = 900.0
"""Seconds after which no further step begins on real GPUs. On an H200 the simulated runs alone took 154 s."""


@dataclass(frozen=True)
class Result:
    """Outcome of a step.

    Attributes:
        state: ok, failed, or not tested.
        why: reason for which it was not tested, or empty.
    """

    number: int
    title: str
    state: str
    seconds: float
    why: str
    lines: list[str]

    @override
    def __str__(self) -> str:
        head = f"{self.number} {self.title}: {self.state}{': ' if self.why else ''}{self.why}, {self.seconds:.1f} s"
        return "\n".join([head, *(f"    {line}" for line in self.lines)])


def carry_out(*, emulated: bool, as_json: bool) -> ExitCode:
    """Prints the report, each step as it ends; fails if a step does.

    Raises:
        ConfigError: `emulated`, and this is not a checkout.
    """
    results = []
    with tempfile.TemporaryDirectory(prefix="pipetrain-doctor-", ignore_cleanup_errors=True) as folder:
        machine = _emulated(Path(folder)) if emulated else Machine(Path(folder))
        if not as_json:
            now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
            versions = f"pipetrain {pipetrain.__version__}, Python {platform.python_version()}"
            print(f"pipetrain doctor --gpu: {versions}, {now}", *[_EMULATION] * emulated, sep="\n", flush=True)
        for result in examine(machine):
            results.append(result)
            if not as_json:
                print(result, flush=True)
    print(json.dumps([asdict(each) for each in results], indent=2) if as_json else _verdict(results, emulated=emulated))
    works = all(result.state != "failed" for result in results) and any(result.state == "ok" for result in results)
    return ExitCode.COMPLETED if works else ExitCode.FAILED


def _emulated(folder: Path) -> Machine:
    """A machine with the devices that the tests of a checkout emulate."""
    tests = Path(pipetrain.__file__).parents[1] / "tests"
    if not (tests / "support" / "emulated_cli.py").exists():
        raise ConfigError("--emulated: the emulation is part of the tests, which a checkout of pipetrain alone has")
    return Machine(
        folder, "fakegpu", _EMULATED_GPUS, ("support.emulated_cli",),
        {"PYTHONPATH": f"{tests.parent}:{tests}", "STRICT_NCCL_LATE_MS": "0.5", "PIPETRAIN_EMULATED_GPUS": "1"},
    )  # fmt: skip


def examine(machine: Machine) -> Iterator[Result]:
    """Results of the steps, each as it ends; the first describes the environment and counts the GPUs."""
    began = time.monotonic()
    first = _result(1, "environment", environment(machine))
    failed = first.state == "failed"
    yield first if failed or machine.gpus else replace(first, state="not tested", why=NO_GPU)
    for number, step in enumerate(STEPS, start=2):
        late = not machine.emulated and time.monotonic() - began > _SECONDS
        why = "step 1 failed" if failed else f"{_SECONDS:g} s have passed" if late else step.obstacle(machine)
        if why:
            yield Result(number, step.title, "not tested", 0.0, why, [])
        else:
            yield _result(number, step.title, step.checks(machine))


def _result(number: int, title: str, checks: Iterable[str]) -> Result:
    began = time.monotonic()
    lines = [line for text in attempt(title, checks) for line in text.splitlines()]
    state = "failed" if any(line.startswith(FAILED) for line in lines) else "ok"
    return Result(number, title, state, round(time.monotonic() - began, 1), "", lines)


def _verdict(results: list[Result], *, emulated: bool) -> str:
    count = {state: sum(result.state == state for result in results) for state in ("ok", "failed", "not tested")}
    if count["ok"] + count["failed"] == 0:
        return "nothing was verified"
    text = ", ".join(f"{number} {state}" for state, number in count.items() if number)
    text += f", {sum(result.seconds for result in results):.0f} s"
    return f"{text}; no GPU was verified" if emulated else text
