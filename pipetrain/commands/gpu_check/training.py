"""Runs of a check: the command line as a user gives it, in a child process, a sweep where there are several."""

import itertools
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pipetrain.commands.gpu_check.children import CheckError, Child, Machine, Section, finish

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
    """Whether two runs completed and agree, in all bits or within a tolerance; what differs is a failure."""
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
    """Whether all runs completed; each that did not is a failure."""
    failed = {name: each for name, each in found.items() if each["status"] != "completed"}
    for name, each in failed.items():
        section.fail(f"{what} {' '.join(name)}: {how_it_ended(each)}")
    return not failed
