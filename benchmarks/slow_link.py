"""Formats of messages over a slow link between two machines, which are network namespaces of this one (needs root).

`python benchmarks/slow_link.py`. ResNet-20 in two stages under `pipedream`, one thread each: samples per second with
each format in both directions, over a link of 80 Mbit/s and over one without a limit, in turn.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import tempfile
from collections.abc import Sequence
from datetime import date
from pathlib import Path

from two_machines import Machine, torchrun, two_machines

FORMATS = ("plain", "bf16", "int8", "int4")
LINKS = {"80mbit": "80 Mbit/s", "100gbit": "no limit"}
"""Rate that `tc` is given -> how it is called."""
WORDS = (
    "model=resnet20", "method=pipedream", "partition=explicit", "partition.boundaries=[8]", "train.batch_size=64",
    "train.microbatches=4", "eval.every_epochs=0", "threads=1", "log.every_steps=10",
)  # fmt: skip
RESULT = Path(__file__).resolve().parents[1] / "results" / "bench" / "slow_link.json"


def samples_per_second(machines: Sequence[Machine], form: str, steps: int) -> float:
    """Throughput of a run with one stage on each machine, without the steps that fill the pipeline."""
    formats = [f"messages.{direction}={form}" for direction in ("activations", "gradients")]
    with tempfile.TemporaryDirectory() as folder:
        words = [*WORDS, f"train.max_steps={steps}", *formats, f"hydra.run.dir={folder}/run"]
        commands = torchrun(machines, *words)
        launchers = [subprocess.Popen(command, stdout=subprocess.DEVNULL) for command in commands]
        if any([launcher.wait() for launcher in launchers]):
            raise SystemExit(f"{form}: the run failed")
        return float(json.loads(Path(folder, "run", "summary.json").read_text())["samples_per_second"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=40, help="of each run")
    options = parser.parse_args()
    found: dict[str, dict[str, list[float]]] = {link: {form: [] for form in FORMATS} for link in LINKS.values()}
    for number in range(options.rounds):
        for rate, link in LINKS.items():
            with two_machines(rate=rate) as machines:
                for form in FORMATS:
                    rate_found = samples_per_second(machines, form, options.steps)
                    found[link][form].append(round(rate_found, 1))
                    print(f"round {number + 1}, {link}, {form}: {rate_found:.1f} samples/s", flush=True)
    result = {
        "what": "ResNet-20, 2 stages on two network namespaces, pipedream, 64 samples in 4 microbatches; samples/s",
        "date": date.today().isoformat(),
        "machine": {"processor": platform.processor() or platform.machine(), "cores": os.cpu_count()},
        "samples_per_second": found,
    }
    RESULT.write_text(json.dumps(result, indent=2) + "\n")
    print(f"\n{'':8}" + "".join(f"{link:>28}" for link in found))
    for form in FORMATS:
        print(f"{form:8}" + "".join(f"{_cell(each, form):>28}" for each in found.values()))
    print(f"\nwritten to {RESULT}")


def _cell(rows: dict[str, list[float]], form: str) -> str:
    """The median, and the median over rounds of the ratio to plain messages."""
    ratios = [ours / plain for ours, plain in zip(rows[form], rows["plain"], strict=True)]
    return f"{statistics.median(rows[form]):.1f} ({statistics.median(ratios):.2f} of plain)"


if __name__ == "__main__":
    main()
