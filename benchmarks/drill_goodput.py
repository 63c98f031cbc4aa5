"""The share of time that ends in kept steps when a run fails once, by kind of fault and interval of checkpoints.

The second part of `make drill`, or

    python benchmarks/drill_goodput.py --faults worker_killed --intervals 2 16 --runs 1

A run trains AlexNet for 32x32 images (23 million parameters) in two processes. Once in it, a fault comes: in the first
third of its steps in the first round, in the second third in the second, and so on; at the same step for every fault
and interval of a round. Each run must end with the bits of the undisturbed run of its interval.

The time counts from the start of the command to its end, with its restarts or the command that continues it. Kept are
the steps in the records of the run at its end. Their time includes the drains that checkpoints cause, and what is left
is the start of the run and of its processes after a fault, the detection of the fault, steps that are done again, and
pauses for checkpoints. `Young` is the interval sqrt(2 * cost of a checkpoint * time between failures).
"""

import argparse
import json
import math
import os
import random
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from typing import Any

from drill_faults import batch_system, launcher_killed, readers_killed, worker_hangs, worker_killed
from drill_run import Drill, summary
from rows import machine, write

STEPS = 96
WORDS = (
    "model=alexnet_cifar", "dataset.limit=512", "train.batch_size=32", f"train.max_steps={STEPS}", "train.epochs=6",
    "partition.stages=2", "device=cpu", "threads=1", "launch.hang_timeout=20", "log.to=[]", "eval.every_epochs=0",
    "checkpoint.every_epochs=0", "checkpoint.keep_last=2",
)  # fmt: skip


def undisturbed(drill: Drill) -> str:
    """Nothing fails."""
    return drill.same_bits(drill.start("method=pipedream"), "pipedream")


FAULTS: dict[str, Callable[[Drill], str]] = {
    each.__name__: each
    for each in (undisturbed, worker_killed, worker_hangs, readers_killed, launcher_killed, batch_system)
}
_MEASURED = ("undisturbed", "worker_killed", "worker_hangs", "launcher_killed")


@dataclass(frozen=True)
class Run:
    """A run with a fault.

    Attributes:
        fault: its kind.
        every_steps: interval of checkpoints.
        seconds: from the start of the command to the end of the run.
        kept_s: training time of the steps in its records.
        trained_s: from the first step to the end, of the last part of a run that was continued.
        checkpoint_s: pauses for checkpoints in that time.
        step_s: median of the seconds of its steps.
        load: processes that were running or waiting for a core on this machine in its last minute.
    """

    fault: str
    every_steps: int
    seconds: float
    kept_s: float
    trained_s: float
    checkpoint_s: float
    step_s: float
    load: float

    @property
    def share(self) -> float:
        return self.kept_s / self.seconds


def measured(fault: str, every: int, number: int, runs: int, folder: Path, seed: int) -> Run:
    """A run with a fault in its part `number` of `runs`."""
    home = folder / f"{fault}-{every}-{number}"
    home.mkdir()  # where resume=auto finds no other run
    drill = Drill(
        home / "run",
        random.Random(f"{seed}/{number}"),
        lambda method: folder / f"{method}-{every}",
        words=(*WORDS, f"checkpoint.every_steps={every}"),
        moments=range(STEPS * number // runs, STEPS * (number + 1) // runs),
        executors=("distributed",),
    )
    with drill.to_its_end():
        began = time.monotonic()
        what = FAULTS[fault](drill)
        seconds = time.monotonic() - began
    ended = summary(drill.run)
    records = [json.loads(line) for line in (drill.run / "metrics.jsonl").read_text().splitlines()]
    steps = [record["train_s"] for record in records if record["kind"] == "interval"]
    assert len(steps) == STEPS
    found = Run(
        fault,
        every,
        seconds,
        sum(steps),
        ended["wall_s"],
        ended["checkpoint_s"],
        statistics.median(steps),
        os.getloadavg()[0],
    )
    shutil.rmtree(home)
    print(f"{fault:16} every {every:3} steps {seconds:6.1f} s  {found.share:4.0%} kept  {what}", flush=True)
    return found


def keep_undisturbed(method: str, every: int, folder: Path) -> None:
    """Makes the run of an interval that others are compared with."""
    run = folder / f"{method}-{every}"
    drill = Drill(run, random.Random(), lambda _: run, words=(*WORDS, f"checkpoint.every_steps={every}"))
    with drill.to_its_end():
        drill.same_bits(drill.start(f"method={method}"), method)
    shutil.rmtree(run / "checkpoints")


def rows_of(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """For each fault and interval the median and the range of the share and the seconds."""
    groups: dict[tuple[str, int], list[Run]] = {}
    for run in runs:
        groups.setdefault((run.fault, run.every_steps), []).append(run)
    return [
        {
            "fault": fault,
            "every_steps": every,
            "runs": len(found),
            "kept_share": _middle([each.share for each in found]),
            "seconds": _middle([each.seconds for each in found]),
        }
        for (fault, every), found in groups.items()
    ]


def young(runs: Sequence[Run]) -> dict[str, Any]:
    """Young's interval for one failure a run, from the undisturbed runs.

    The cost of a checkpoint is the difference of the times of the shortest and the longest interval, which includes the
    drain, by the number of checkpoints that the shortest has more.
    """
    calm = [run for run in runs if run.fault == "undisturbed"]
    intervals = sorted({run.every_steps for run in calm})
    if len(intervals) < 2:
        return {}
    trained = {
        every: statistics.median(run.trained_s for run in calm if run.every_steps == every) for every in intervals
    }
    most, fewest = (math.ceil(STEPS / every) for every in (intervals[0], intervals[-1]))
    cost = max(0.0, (trained[intervals[0]] - trained[intervals[-1]]) / (most - fewest))
    pause = statistics.median(run.checkpoint_s / most for run in calm if run.every_steps == intervals[0])
    between = statistics.median(run.seconds for run in calm)
    step = statistics.median(run.step_s for run in calm if run.every_steps == intervals[-1])
    seconds = math.sqrt(2 * cost * between)
    return {
        "checkpoint_cost_s": round(cost, 3),
        "checkpoint_pause_s": round(pause, 3),
        "between_failures_s": round(between, 1),
        "start_s": round(statistics.median(run.seconds - run.trained_s for run in calm), 1),
        "step_s": round(step, 3),
        "interval_s": round(seconds, 1),
        "interval_steps": round(seconds / step),
    }


def result_of(runs: Sequence[Run]) -> dict[str, Any]:
    """The results so far, as they are stored."""
    return {
        "what": "share of time that ended in kept steps: median, smallest, largest",
        "date": date.today().isoformat(),
        "machine": machine("cpu"),
        "load": _middle([run.load for run in runs]),
        "words": WORDS,
        "steps": STEPS,
        "rows": rows_of(runs),
        "young": young(runs),
        "each": [{**asdict(run), "kept_share": run.share} for run in runs],
    }


def _middle(values: Sequence[float]) -> list[float]:
    """Median, smallest and largest value."""
    return [round(each, 4) for each in (statistics.median(values), min(values), max(values))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", nargs="+", choices=list(FAULTS), default=list(_MEASURED))
    parser.add_argument("--intervals", nargs="+", type=int, default=[2, 16, 48], help="steps between checkpoints")
    parser.add_argument("--runs", type=int, default=3, help="runs of each fault and interval")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--write", action="store_true", help="store the result in results/bench/goodput.json")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="pipetrain-goodput-"))
    methods = ["gpipe"] * ("batch_system" in options.faults) + ["pipedream"]
    for method in methods:
        for every in options.intervals:
            keep_undisturbed(method, every, folder)
    runs: list[Run] = []
    for number in range(options.runs):
        for every in options.intervals:
            for fault in options.faults:
                runs.append(measured(fault, every, number, options.runs, folder, options.seed))
        if options.write:
            write(result_of(runs), "goodput")  # after each round, as all of them take long
    shutil.rmtree(folder)
    found = result_of(runs)
    print(json.dumps({name: found[name] for name in ("rows", "young")}, indent=1))


if __name__ == "__main__":
    main()
