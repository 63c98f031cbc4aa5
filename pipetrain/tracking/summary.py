"""summary.json: what a run came to; written last and atomically, so whoever finds it finds all of it."""

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pipetrain.planner.plan import ENDS_SHOWN, elided

NAME = "summary.json"


def weights_sha256(state: Mapping[str, Tensor]) -> str:
    """Over the names in sorted order, each followed by its raw contiguous little-endian bytes."""
    digest = hashlib.sha256()
    for name in sorted(state):
        digest.update(name.encode())
        digest.update(raw_bytes(state[name]))
    return digest.hexdigest()


def raw_bytes(tensor: Tensor) -> bytes:
    """The tensor's values as contiguous little-endian bytes (every platform torch runs on is little-endian)."""
    data: bytes = tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()
    return data


def loss_sha256(losses: Sequence[float]) -> str:
    """Over the float32 training loss of every step."""
    return hashlib.sha256(raw_bytes(torch.tensor(losses, dtype=torch.float32))).hexdigest()


def write(run: Path, summary: Mapping[str, Any]) -> None:
    """Writes the file in one rename."""
    partial = run / (NAME + ".partial")
    partial.write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
    os.replace(partial, run / NAME)


def read(run: Path) -> dict[str, Any] | None:
    """The summary of a run, None where it has none."""
    path = run / NAME
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None


def shown(summary: Mapping[str, Any]) -> str:
    """The few lines that a run ends with."""
    lines = [f"{summary['status']} after {summary['steps']} steps, {_duration(summary['wall_s'])}"]
    if summary.get("samples_per_second"):
        lines[0] += f", {summary['samples_per_second']:.0f} samples/s"
    for which in ("final", "best"):
        if summary.get(which):
            values = "  ".join(f"{name} {value:.4g}" for name, value in summary[which].items())
            lines.append(f"{which:5}  {values}")
    if any("forward_staleness" in stage for stage in summary["per_stage"]):
        lines += _stages(summary["per_stage"])
    return "\n".join(lines)


def _stages(stages: Sequence[Mapping[str, Any]]) -> list[str]:
    lines = ["stage  idle   versions  weights MB  activations MB  staleness F / B"]
    for r, stage in enumerate(stages):
        if elided(r, len(stages)):
            if r == ENDS_SHOWN:
                lines.append(f"  ...  {len(stages) - 2 * ENDS_SHOWN} more stages, in summary.json")
            continue
        forward, backward = (_set(stage[f"{which}_staleness"]) for which in ("forward", "backward"))
        lines.append(
            f"{r:5}  {_percent(stage['idle_share']):>4}  {stage['weight_versions_max']:9}  "
            f"{_megabytes(stage['weight_bytes_peak']):>10}  {_megabytes(stage['activation_bytes_peak']):>14}  "
            f"{forward} / {backward}"
        )
    return lines


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.0%}"


def _megabytes(count: int | None) -> str:
    return "-" if count is None else f"{count / 1e6:.1f}"


def _set(values: Sequence[int]) -> str:
    return ",".join(map(str, values)) or "-"


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{seconds:.1f} s"
