"""Rows measured in rounds: medians, ratios and the machine, printed as a table and stored as JSON."""

import json
import os
import platform
import shutil
import statistics
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from typing_extensions import override

from pipetrain.engine.arithmetic import switches_in_effect

LOSS_TOLERANCE = 0.1
"""Largest relative difference between the losses of a row and of the synchronous row."""
_RESULTS = Path(__file__).resolve().parents[1] / "results" / "bench"


class Measured(NamedTuple):
    """One round of a row.

    Attributes:
        speed: samples per second.
        loss: mean training loss.
        idle: idle share of each stage; empty if unknown.
        overhead: share of the time that messages and Python took; None if unknown.
    """

    speed: float
    loss: float
    idle: Sequence[float] = ()
    overhead: float | None = None

    @override
    def __str__(self) -> str:
        shares = "".join(f" {share:5.0%}" for share in self.idle)
        return f"{self.speed:8.1f} samples/s  loss {self.loss:6.3f}  idle{shares or ' -'}"


@dataclass
class Rows:
    """All measurements.

    Attributes:
        rounds: name of a row -> its rounds, in order.
    """

    rounds: dict[str, list[Measured]] = field(default_factory=dict)

    def add(self, name: str, measured: Measured) -> None:
        """Adds a round of a row."""
        self.rounds.setdefault(name, []).append(measured)

    @property
    def speeds(self) -> dict[str, list[float]]:
        """Name of a row -> samples per second in each round."""
        return {name: [each.speed for each in rounds] for name, rounds in self.rounds.items()}

    def check(self, reference: str) -> None:
        """Checks the losses of the last round, because a network that diverges does not do the same work.

        Args:
            reference: a synchronous row; the loss of every other row must be within `LOSS_TOLERANCE` of its loss. A
                limit trains on one minibatch, so its loss may be lower.

        Raises:
            SystemExit: the loss of a row is not, or is not finite.
        """
        expected = self.rounds[reference][-1].loss
        for name, rounds in self.rounds.items():
            loss = rounds[-1].loss
            lower = name.startswith("limit") and 0 <= loss < expected
            if not (lower or abs(loss / expected - 1) <= LOSS_TOLERANCE):
                raise SystemExit(f"{name}: no measurement: its loss is {loss:.3f}, that of {reference} {expected:.3f}")

    def ratio(self, name: str, *others: str) -> float:
        """Speed relative to the fastest of the others in the same round; median over all rounds."""
        best: list[float] = [max(speeds) for speeds in zip(*(self.speeds[other] for other in others), strict=True)]
        return statistics.median(own / other for own, other in zip(self.speeds[name], best, strict=True))


def summary(what: str, rows: Rows, ratios: Iterable[tuple[str, str]], **details: object) -> dict[str, Any]:
    """Results of all rows, as they are stored.

    Args:
        what: description of the measurement.
        rows: all rounds.
        ratios: pairs of rows to compare; pairs with a row that was not measured are left out.
        details: further entries.
    """
    pairs = [(a, b) for a, b in ratios if a in rows.speeds and b in rows.speeds]
    return {
        "what": what,
        "date": date.today().isoformat(),
        "unit": "samples per second, median over rounds",
        **details,
        "rows": {name: round(statistics.median(values), 2) for name, values in rows.speeds.items()},
        "spread": {name: [round(min(values), 2), round(max(values), 2)] for name, values in rows.speeds.items()},
        "losses": {name: _median(each.loss for each in rounds) for name, rounds in rows.rounds.items()},
        "idle": {
            name: [_median(shares) for shares in zip(*(each.idle for each in rounds), strict=True)]
            for name, rounds in rows.rounds.items()
            if rounds[0].idle
        },
        "overhead": {
            name: _median(each.overhead for each in rounds if each.overhead is not None)
            for name, rounds in rows.rounds.items()
            if rounds[0].overhead is not None
        },
        "ratios": {f"{a} / {b}": round(rows.ratio(a, b), 3) for a, b in pairs},
    }


def _median(values: Iterable[float]) -> float:
    return round(statistics.median(values), 3)


def machine(device: str) -> dict[str, Any]:
    """Hardware and versions; `device` is cpu or cuda."""
    return {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "device": torch.cuda.get_device_name(0) if device == "cuda" else "cpu",
        "python": platform.python_version(),
        "torch": torch.__version__,
        **(_of_cuda() if device == "cuda" else {}),
    }


def _of_cuda() -> dict[str, Any]:
    """Versions, switches and topology, which determine how fast the GPUs compute and communicate."""
    return {
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
        "nccl": ".".join(map(str, torch.cuda.nccl.version())) if dist.is_nccl_available() else None,
        **switches_in_effect("cuda"),
        "topology": _topology(),
    }


def _topology() -> list[str] | None:
    """Links between the GPUs, as `nvidia-smi topo -m` prints them; None where there is no `nvidia-smi`."""
    if (command := shutil.which("nvidia-smi")) is None:
        return None
    done = subprocess.run([command, "topo", "-m"], capture_output=True, text=True, timeout=60)
    return done.stdout.splitlines() if done.returncode == 0 else None


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.is_file() else []
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def show(result: dict[str, Any]) -> None:
    """Prints a summary."""
    print(f"\n{result['what']}\n")
    for name, value in result.get("machine", {}).items():
        lines = value if isinstance(value, list) else [value]
        print(*(f"{name if i == 0 else '':18} {line}" for i, line in enumerate(lines)), sep="\n")
    print()
    for name, value in result["rows"].items():
        low, high = result["spread"][name]
        idle = "  ".join(f"{share:.0%}" for share in result["idle"].get(name, []))
        overhead = result["overhead"].get(name)
        print(
            f"{name:18} {value:8.1f} samples/s   ({low:.1f} - {high:.1f})   {f'idle {idle}' if idle else ''}"
            f"{'' if overhead is None else f'   overhead {overhead:.1%}'}"
        )
    print()
    for name, value in result["ratios"].items():
        print(f"{name:34} {value:.3f}")


def write(result: dict[str, Any], name: str) -> None:
    """Writes a summary where the documentation looks for it."""
    path = _RESULTS / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=2) + "\n")
    print(f"\nwritten to {path}")
