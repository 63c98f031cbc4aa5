"""Measures what one GPU needs for pipetrain's work: a report that anybody with a GPU can run and paste.

python scripts/gpu_report.py

In a checkout, it takes at most nine minutes of one H100 or H200. `benchmarks/gpu_parts.py` says what its parts measure;
the last one runs the tests of `make test-cuda` for the time that is left. Each part is a process with a limit of its
time, and one that fails or takes too long ends no other. All output is printed as it comes; the results are also
written to results/bench/gpu.json after every line of them. `--device cpu --tiny` tries the report without a GPU.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
RESULT = ROOT / "results" / "bench" / "gpu.json"
_LOOK_S = 0.2
_TAIL = 12
"""Last lines of the output of a part that are kept if it fails, and of the tests."""


class Part(NamedTuple):
    """A part of the report, and the seconds that it may take."""

    name: str
    seconds: float
    command: list[str]


def parts_of(options: argparse.Namespace) -> list[Part]:
    """All parts, in the order in which they are run."""
    more = ["--device", options.device, *(["--tiny"] if options.tiny else [])]
    seconds = {
        "speed_resnet50": 70, "speed_gpt2": 70, "speed_resnet56": 60, "kernels": 60, "memory": 60, "bits": 90,
        "host_time": 40, "compiled": 80,
    }  # fmt: skip
    script = str(ROOT / "benchmarks" / "gpu_parts.py")
    measured = [Part(name, limit, [sys.executable, script, name, *more]) for name, limit in seconds.items()]
    tests = [sys.executable, "-m", "pytest", "-m", "cuda", "-v", "tests/cuda"]
    return [*measured, Part("tests", 60.0 * options.minutes, tests)]


class Report:
    """The results so far, which are written each time that one is added."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._content: dict[str, Any] = {"date": time.strftime("%Y-%m-%d"), "machine": {}, "parts": {}}

    def add(self, part: str, found: dict[str, Any]) -> None:
        """Adds results of a part."""
        machine = found.pop("machine", {})
        self._content["machine"].update(machine)
        self._content["parts"].setdefault(part, {}).update(found)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.write_text(json.dumps(self._content, indent=2) + "\n", encoding="utf-8")


def carry_out(part: Part, limit: float, report: Report) -> None:
    """Runs a part for up to `limit` seconds, and adds what it prints as JSON, and how it ended."""
    print(f"\n-- {part.name}, at most {limit:.0f} s", flush=True)
    paths = [ROOT, ROOT / "tests", ROOT / "benchmarks", *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))}
    lines: list[str] = []
    began = time.monotonic()
    with tempfile.NamedTemporaryFile("r+", encoding="utf-8", errors="replace") as output:
        # a file and no pipe, which processes that outlive the part would keep open
        with Path(output.name).open("w") as written:
            process = subprocess.Popen(
                part.command, cwd=ROOT, env=environment, stdout=written, stderr=written, start_new_session=True
            )
        while process.poll() is None and time.monotonic() - began < limit:
            time.sleep(_LOOK_S)
            lines += _read(part.name, output, report)
        ended = process.poll()
        if ended is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        lines += _read(part.name, output, report)
    how: dict[str, Any] = {"seconds": round(time.monotonic() - began, 1), "exit_code": ended}
    if ended != 0 or part.name == "tests":
        how["last_lines"] = lines[-_TAIL:]
    report.add(part.name, how)
    print(f"-- {part.name}: {'stopped' if ended is None else f'exit code {ended}'} after {how['seconds']} s")


def _read(part: str, output: IO[str], report: Report) -> list[str]:
    """Prints the lines that a part has written since, and adds results among them."""
    lines: list[str] = []
    while True:
        start = output.tell()
        if not (line := output.readline()).endswith("\n"):  # the rest of it is to come
            output.seek(start)
            return lines
        print(line, end="", flush=True)
        if line.startswith("{"):
            with suppress(json.JSONDecodeError):
                report.add(part, json.loads(line))
        lines.append(line.rstrip("\n"))


def main() -> None:
    """Carries out all parts, or those that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--tiny", action="store_true", help="tiny models, few steps: to try the report itself")
    parser.add_argument("--minutes", type=float, default=9.0, help="that the report may take (default: 9)")
    parser.add_argument("--parts", nargs="*", help="to carry out; all unless given")
    parser.add_argument("--out", type=Path, default=RESULT, help="where the results are written")
    options = parser.parse_args()
    parts = parts_of(options)
    names = [part.name for part in parts]
    if unknown := set(options.parts or ()).difference(names):
        parser.error(f"--parts {' '.join(sorted(unknown))}: choose from {', '.join(names)}")
    end, report = time.monotonic() + 60 * options.minutes, Report(options.out)
    for part in parts:
        if options.parts and part.name not in options.parts:
            continue
        carry_out(part, max(1.0, min(part.seconds, end - time.monotonic())), report)
    print(f"\nwritten to {options.out}")


if __name__ == "__main__":
    main()
