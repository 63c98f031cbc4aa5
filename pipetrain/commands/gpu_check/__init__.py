"""`pipetrain doctor --gpu`: whether pipetrain's ways with GPUs work on this machine, as one text to paste."""

import datetime
import json
import platform
import shutil
import tempfile
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from typing_extensions import override

import pipetrain
from pipetrain.commands.gpu_check.runs import Machine, Section
from pipetrain.commands.gpu_check.steps import STEPS, Step, environment
from pipetrain.errors import ConfigError, ExitCode

_EMULATION = """\
EMULATED: each process has a GPU that its own threads pretend, and NCCL's rules between them. That shows orders of
messages, deadlocks and missing waits. It cannot show hardware queues, multiprocessors, drivers, speed, or what kernels
of CUDA's compute."""
_EMULATED_GPUS = 3
_SECONDS = 180.0
"""After which no further step begins, but where threads stand for devices."""


@dataclass(frozen=True)
class Result:
    """Outcome of a step.

    Attributes:
        state: ok, failed, or not tested.
        why: it was not tested.
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
    """Prints the report, each step as it ends; fails where a step does.

    Raises:
        ConfigError: the emulation is not there.
    """
    folder = Path(tempfile.mkdtemp(prefix="pipetrain-doctor-"))
    try:
        machine = _emulated(folder) if emulated else Machine(folder)
        if not as_json:
            print(_head(emulated=emulated), flush=True)
        results = _results(machine, aloud=not as_json)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if as_json:
        print(json.dumps([asdict(result) for result in results], indent=2))
    else:
        print(_verdict(results, emulated=emulated))
    return ExitCode.FAILED if any(result.state == "failed" for result in results) else ExitCode.COMPLETED


def _emulated(folder: Path) -> Machine:
    """A machine of emulated devices, which the tests of a checkout bring."""
    tests = Path(pipetrain.__file__).parents[1] / "tests"
    if not (tests / "support" / "emulated_cli.py").exists():
        raise ConfigError("--emulated: the emulation is part of the tests, which a checkout of pipetrain alone has")
    return Machine(
        folder, "fakegpu", _EMULATED_GPUS, ("support.emulated_cli",),
        {"PYTHONPATH": f"{tests.parent}:{tests}", "STRICT_NCCL_LATE_MS": "0.5", "PIPETRAIN_EMULATED_GPUS": "1"},
        patience=3,
    )  # fmt: skip


def _results(machine: Machine, *, aloud: bool) -> list[Result]:
    began = time.monotonic()
    gpus, section = environment(machine)
    machine = machine if machine.emulated else replace(machine, gpus=gpus)
    why = "" if machine.gpus or section.failures else "torch finds no CUDA device"
    results = [_told(_result(1, "environment", section, time.monotonic() - began, why), aloud=aloud)]
    for number, step in enumerate(STEPS, start=2):
        late = not machine.emulated and time.monotonic() - began > _SECONDS
        unknown = "step 1 failed" if section.failures else f"{_SECONDS:g} s have passed" if late else ""
        results.append(_told(_carried_out(number, step, machine, unknown), aloud=aloud))
    return results


def _carried_out(number: int, step: Step, machine: Machine, unknown: str) -> Result:
    began, section = time.monotonic(), Section()
    why = unknown or step.not_tested(machine) or ""
    if not why:
        section.attempt(step.title, lambda: step.carry_out(machine, section))
    return _result(number, step.title, section, time.monotonic() - began, why)


def _result(number: int, title: str, section: Section, seconds: float, why: str) -> Result:
    state = "not tested" if why else "failed" if section.failures else "ok"
    return Result(number, title, state, round(seconds, 1), why, section.lines)


def _told(result: Result, *, aloud: bool) -> Result:
    if aloud:
        print(result, flush=True)
    return result


def _head(*, emulated: bool) -> str:
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    head = f"pipetrain doctor --gpu: pipetrain {pipetrain.__version__}, Python {platform.python_version()}, {now}"
    return f"{head}\n{_EMULATION}" if emulated else head


def _verdict(results: list[Result], *, emulated: bool) -> str:
    count = {state: sum(result.state == state for result in results) for state in ("ok", "failed", "not tested")}
    if count["ok"] + count["failed"] == 0:
        return "nothing was verified"
    text = ", ".join(f"{number} {state}" for state, number in count.items() if number)
    text += f", {sum(result.seconds for result in results):.0f} s"
    return f"{text}; no GPU was verified" if emulated else text
