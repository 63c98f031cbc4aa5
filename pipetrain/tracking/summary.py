"""summary.json: what a run came to; written last and atomically, so whoever finds it finds all of it."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from pipetrain.errors import ConfigError, one_line
from pipetrain.tracking import strict_json
from pipetrain.tracking.run_directory import RunDirectory
from pipetrain.tracking.whole_file import write_whole

STATUSES = ("completed", "diverged", "failed", "interrupted")


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


def write(run: RunDirectory, summary: Mapping[str, Any]) -> None:
    """Writes the file in one rename."""
    write_whole(run.summary, strict_json.dumps(summary, indent=2) + "\n")


def read(run: RunDirectory) -> dict[str, Any] | None:
    """The summary of a run, None where it has none.

    Raises:
        ConfigError: the file is damaged.
    """
    if not run.summary.is_file():
        return None
    try:
        content = strict_json.loads(run.summary.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{run.summary}: damaged: {one_line(error)}") from error
    if not isinstance(content, dict) or content.get("status") not in STATUSES:
        raise ConfigError(f"{run.summary}: damaged: it names no status")
    return content
