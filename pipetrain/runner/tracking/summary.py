"""summary.json: the results of a run, written last and atomically."""

import contextlib
import hashlib
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from pipetrain.data.files import strict_json
from pipetrain.engine.errors import ConfigError, one_line
from pipetrain.engine.tensors import dense
from pipetrain.runner.tracking.files import write_whole
from pipetrain.runner.tracking.run_directory import RunDirectory

STATUSES = ("completed", "diverged", "failed", "interrupted")
_KINDS: Mapping[str, type] = {"final": dict, "best": dict, "per_stage": list}


def weights_sha256(in_order: Iterable[tuple[str, Tensor]]) -> str:
    """Hash over names, which come in sorted order, each followed by its raw contiguous little-endian bytes."""
    digest = hashlib.sha256()
    for name, tensor in in_order:
        digest.update(name.encode())
        digest.update(raw_bytes(tensor))
    return digest.hexdigest()


def raw_bytes(tensor: Tensor) -> bytes:
    """The tensor's values as contiguous little-endian bytes (every platform torch runs on is little-endian)."""
    data: bytes = dense(tensor.detach().cpu()).contiguous().flatten().view(torch.uint8).numpy().tobytes()
    return data


def loss_sha256(losses: Sequence[float]) -> str:
    """Hash over the float32 training loss of every step."""
    return hashlib.sha256(raw_bytes(torch.tensor(losses, dtype=torch.float32))).hexdigest()


def write(run: RunDirectory, summary: Mapping[str, Any]) -> None:
    """Writes the file in one rename."""
    write_whole(run.summary, strict_json.dumps(summary, indent=2) + "\n")


def read(run: RunDirectory) -> dict[str, Any] | None:
    """The summary of a run; None if it has none. Raises a ConfigError if the file is damaged."""
    if not run.summary.is_file():
        return None
    try:
        content = strict_json.read(run.summary)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{run.summary}: damaged: {one_line(error)}") from error
    if not isinstance(content, dict) or content.get("status") not in STATUSES:
        raise ConfigError(f"{run.summary}: damaged: it names no status")
    for name, kind in _KINDS.items():
        if not isinstance(content.get(name, kind()), kind):
            raise ConfigError(f"{run.summary}: damaged: {name} is not a {'list' if kind is list else 'mapping'}")
    return content


def read_undamaged(run: RunDirectory) -> dict[str, Any] | None:
    """The summary of a run; None if it has none, or a damaged one."""
    with contextlib.suppress(ConfigError):
        return read(run)
    return None


def is_completed(run: RunDirectory) -> bool:
    """True if the summary of a run says that it completed; a damaged summary does not."""
    return (read_undamaged(run) or {}).get("status") == "completed"


def totals_of_stages(stages: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Totals over `per_stage` of a summary, as far as known.

    `idle_share` is the mean, `weight_bytes` and `activation_bytes` are sums, `stage_bytes` is the largest sum of both
    of a stage, `memory_bytes` is the largest of a process, and `copies` are the weights held over those of one version.
    If messages have a format, `message_bytes` are those of a step, and `message_share` is their share of plain ones'.
    """
    weights = _known(stages, "weight_bytes_peak")
    activations = _known(stages, "activation_bytes_peak")
    one = sum(_known(stages, "weight_bytes"))
    sent, plain = (
        sum(sum(_known(stages, f"{direction}_{what}")) for direction in ("activations", "gradients"))
        for what in ("bytes", "plain_bytes")
    )
    found = {
        "idle_share": statistics.fmean(idle) if (idle := _known(stages, "idle_share")) else None,
        "weight_bytes": sum(weights) or None,
        "activation_bytes": sum(activations) or None,
        "stage_bytes": max(map(sum, zip(weights, activations, strict=False)), default=None),
        "memory_bytes": max(_known(stages, "peak_memory_bytes"), default=None),
        "copies": sum(weights) / one if weights and one else None,
        "message_bytes": sent or None,
        "message_share": sent / plain if plain else None,
    }
    return {name: value for name, value in found.items() if value is not None}


def _known(stages: Sequence[Mapping[str, Any]], name: str) -> list[float]:
    return [stage[name] for stage in stages if stage.get(name) is not None]
