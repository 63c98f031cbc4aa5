"""Where the time from Enter to the end of the first step goes, on two processes and simulated.

`make bench`, or `python benchmarks/startup.py`. LeNet-5 in two stages, a step of 32 samples, each executor in turn.
Wall time by phase, the median of some rounds, and the processor time of all processes up to the end of the run, which
a busy machine changes less. Imports include those that the first call of a function brings. Then what each further run
of a sweep takes, which starts in the same process and from the same fork server.
"""

import argparse
import contextlib
import ctypes
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import date
from pathlib import Path
from typing import Any

from pipetrain.runner.tracking.run_directory import RunDirectory

PHASES = {
    "interpreter": "Python starts",
    "settings": "Hydra composes the settings, which are checked",
    "imports": "torch, and what the checks need of pipetrain",
    "checks": "data set, model and plan are built and checked",
    "start": "until the first stage begins: processes, or nothing but the stages",
    "first step": "until every stage has updated its weights",
    "end": "until the command is back",
}
EXECUTORS = ("distributed", "simulated")
WORDS = (
    "model=lenet5",
    "partition.stages=2",
    "dataset.limit=32",
    "train.batch_size=32",
    "train.epochs=1",
    "trace=true",
)
RESULT = Path(__file__).resolve().parents[1] / "results" / "bench" / "startup.json"
_PR_SET_CHILD_SUBREAPER = 36


def measured(executor: str) -> dict[str, float]:
    """One run: seconds of wall time by phase, and of processor time."""
    with tempfile.TemporaryDirectory() as folder:
        marks, run = Path(folder) / "marks.json", RunDirectory(Path(folder) / "run")
        words = [f"hydra.run.dir={run}", f"executor={executor}", *WORDS]
        used, began = _processor_seconds(), time.perf_counter()
        command = [sys.executable, __file__, "--marks", str(marks), *words]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        seen = json.loads(marks.read_text())
        ends = [*seen, *([] if executor == "simulated" else _first_step(run)), time.perf_counter()]
        _wait_for_orphans()
        spans = [end - start for start, end in zip([began, *ends], ends, strict=False)]
        return {**dict(zip(PHASES, spans, strict=True)), "processor": _processor_seconds() - used}


def _first_step(run: RunDirectory) -> tuple[float, float]:
    """When the first operation of all processes began, and when the last of the first updates ended."""
    lines = [json.loads(line) for part in run.trace_parts.glob("*.jsonl") for line in part.read_text().splitlines()]
    events = [line for line in lines if "ts" in line]
    updates = [event["ts"] + event["dur"] for event in events if event["name"] == "U0"]
    return min(event["ts"] for event in events) / 1e6, max(updates) / 1e6


def _processor_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _wait_for_orphans() -> None:
    """What a process used is known once it has been waited for; the fork server outlives the command by a moment."""
    with contextlib.suppress(ChildProcessError):
        while True:
            os.wait()


def further(executor: str) -> dict[str, float]:
    """What each further run of a sweep takes, from one's end to the next one's: seconds of wall and processor time."""
    one, many = (_sweep(executor, seeds) for seeds in ("0", "0,1,2,3,4"))
    return {name: (many[name] - one[name]) / 4 for name in one}


def _sweep(executor: str, seeds: str) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        used, began = _processor_seconds(), time.perf_counter()
        words = [f"seed={seeds}", f"hydra.sweep.dir={folder}/sweep", f"executor={executor}", *WORDS]
        command = [sys.executable, "-m", "pipetrain", "run", "--multirun", *words]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        wall = time.perf_counter() - began
        _wait_for_orphans()
        return {"wall": wall, "processor": _processor_seconds() - used}


def marked_run(marks: Path, words: list[str]) -> None:
    """Carries out `pipetrain run`, and writes when its phases ended; of a simulation, those of the step as well."""
    ends = [time.perf_counter()]

    from pipetrain import cli
    from pipetrain.commands.run import one_run
    from pipetrain.data.libraries.imports import gc_paused
    from pipetrain.runner.api import one_run as shared

    def simulated_steps(*given: Any) -> Any:
        from pipetrain.runner.tracking.run_recorder import Recorder

        for name in ("start", "step"):
            setattr(Recorder, name, marking(getattr(Recorder, name)))
        return lead(*given)

    carried_out, lead = one_run.run, one_run._run_as_launcher

    def marking(function: Callable[..., Any]) -> Callable[..., Any]:
        def marked(*given: Any) -> Any:
            ends.append(time.perf_counter())
            return function(*given)

        return marked

    @contextlib.contextmanager
    def marked_imports(library: str) -> Iterator[None]:
        with gc_paused(library):
            yield
        ends.append(time.perf_counter())

    vars(shared).update(gc_paused=marked_imports)
    vars(one_run).update(run=marking(carried_out), _run_as_launcher=marking(simulated_steps))
    sys.argv = ["pipetrain", "run", *words]
    try:
        cli.main()
    finally:
        marks.write_text(json.dumps(ends))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
    for executor in EXECUTORS:
        measured(executor)  # files are read from the disk once
    seen = [{executor: measured(executor) for executor in EXECUTORS} for _ in range(rounds)]
    rows = {
        executor: {
            name: round(statistics.median(each[executor][name] for each in seen), 3) for name in (*PHASES, "processor")
        }
        for executor in EXECUTORS
    }
    sweeps = {executor: {name: round(value, 3) for name, value in further(executor).items()} for executor in EXECUTORS}
    result = {
        "what": "LeNet-5, 2 stages, one step of 32 samples; seconds, the median of the rounds",
        "date": date.today().isoformat(),
        "machine": {"processor": platform.processor() or platform.machine(), "cores": os.cpu_count()},
        "rounds": rounds,
        "phases": PHASES,
        "rows": rows,
        "further runs of a sweep, each": sweeps,
    }
    RESULT.parent.mkdir(parents=True, exist_ok=True)
    RESULT.write_text(json.dumps(result, indent=2) + "\n")
    show(rows)
    for executor, found in sweeps.items():
        print(f"each further run of a sweep, {executor}: {found['wall']:.2f} s, processor {found['processor']:.2f} s")
    print(f"\nwritten to {RESULT}")


def show(rows: dict[str, dict[str, float]]) -> None:
    def line(name: str, seconds: Iterable[float], meaning: str) -> str:
        return f"{name:12}{''.join(f'{value:11.2f} s' for value in seconds)}   {meaning}"

    print(f"{'':12}{''.join(f'{executor:>13}' for executor in rows)}")
    for name, meaning in PHASES.items():
        print(line(name, [row[name] for row in rows.values()], meaning))
    before_end = [name for name in PHASES if name != "end"]
    print(line("to step 1", [sum(map(row.__getitem__, before_end)) for row in rows.values()], "all but the end"))
    print(line("processor", [row["processor"] for row in rows.values()], "of all processes"))


if __name__ == "__main__":
    if "--marks" in sys.argv[1:2]:
        marked_run(Path(sys.argv[2]), sys.argv[3:])
    else:
        main()
