"""A fault drill: short runs in which something fails at a random moment, and what becomes of each.

Each must end with the bits of an undisturbed run, by itself or when it is resumed, or say in one line what is wrong.
A run of the same seed draws the same faults; when exactly a process is hit depends on the machine.

    python benchmarks/drill.py --faults 300 --seed 0
    python benchmarks/drill.py --only 17            # the fault of this number alone
"""

import argparse
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock

from drill_faults import FAULTS
from drill_run import WORDS, Drill, Wrong, command


@dataclass(frozen=True)
class Undisturbed:
    """The runs that others are compared with, each made where a fault first needs it.

    Attributes:
        folder: where they are.
    """

    folder: Path
    _lock: Lock = field(default_factory=Lock)

    def __call__(self, method: str) -> Path:
        run = self.folder / method
        with self._lock:
            if not run.exists():
                words = [*WORDS, f"method={method}", "executor=simulated", f"hydra.run.dir={run}"]
                subprocess.run(command("run", *words), stdout=subprocess.DEVNULL, check=True)
        return run


@dataclass(frozen=True)
class Outcome:
    """What became of a fault.

    Attributes:
        number, kind: which one it was.
        what: such as `same bits`.
        seconds: how long it took.
    """

    number: int
    kind: str
    what: str
    seconds: float

    @property
    def wrong(self) -> bool:
        return self.what.startswith("WRONG")

    @property
    def line(self) -> str:
        return f"{self.number:4} {self.kind:16} {self.seconds:4.0f} s  {self.what}"


def carried_out(number: int, seed: int, folder: Path, undisturbed: Callable[[str], Path]) -> Outcome:
    fault, began = FAULTS[number % len(FAULTS)], time.monotonic()
    (folder / f"{number}").mkdir()  # where resume=auto finds no other run beside its own
    drill = Drill(folder / f"{number}" / "run", random.Random(f"{seed}/{number}"), undisturbed)
    with drill.to_its_end():
        try:
            what = fault(drill)
            shutil.rmtree(drill.run, ignore_errors=True)
        except (Wrong, subprocess.TimeoutExpired) as error:
            what = f"WRONG: {error} (see {drill.run})"
    return Outcome(number, fault.__name__, what, time.monotonic() - began)


def show_counts(outcomes: list[Outcome]) -> None:
    counts = Counter((each.kind, each.what.split(":")[0]) for each in outcomes)
    print("", *(f"{kind:16} {what:26} {count}" for (kind, what), count in sorted(counts.items())), sep="\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, nargs="*", help="the numbers of the faults to repeat")
    parser.add_argument("--jobs", type=int, default=2, help="how many at a time")
    options = parser.parse_args()
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup has it ignored, which commands inherit and respect
    numbers = range(options.faults) if options.only is None else options.only
    folder, outcomes = Path(tempfile.mkdtemp(prefix="pipetrain-drill-")), []
    undisturbed = Undisturbed(folder)
    with ThreadPoolExecutor(options.jobs) as pool:
        started = [pool.submit(carried_out, number, options.seed, folder, undisturbed) for number in numbers]
        try:
            for each in as_completed(started):
                outcomes.append(each.result())
                print(outcomes[-1].line, flush=True)
        except KeyboardInterrupt:
            pool.shutdown(cancel_futures=True)  # those under way come to their end
            show_counts(outcomes)
            sys.exit(130)
    show_counts(outcomes)
    if any(each.wrong for each in outcomes):
        sys.exit(f"what was wrong is kept in {folder}")
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
