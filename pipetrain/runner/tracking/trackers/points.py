"""The numbers that trackers show, by tag: of a record, and of a whole run."""

import re
from collections.abc import Mapping
from typing import Any

from pipetrain.engine.program.trace import QUANTITIES
from pipetrain.runner.tracking.records import OF_MESSAGES, REPLICA_DISTANCE, Record, metrics_of
from pipetrain.runner.tracking.summary import totals_of_stages
from pipetrain.runner.tracking.throughput import ALL_THROUGHPUTS

_MB = 1e-6
RATE = "lr"
CHARTS = {
    "idle_share": ("idle_share", 1.0),
    "activation_bytes_peak": ("activations_MB", _MB),
    "weight_bytes_peak": ("weights_MB", _MB),
    "peak_memory_bytes": ("memory_MB", _MB),
    "weight_versions_max": ("weight_versions", 1.0),
    "forward_staleness": ("forward_staleness", 1.0),
    "backward_staleness": ("backward_staleness", 1.0),
    RATE: ("stage_lr", 1.0),
    REPLICA_DISTANCE: (REPLICA_DISTANCE, 1.0),
    **{name: (name, 1.0) for name in QUANTITIES},
    **{name: (f"messages_{name.replace('bytes', 'MB')}", _MB if "bytes" in name else 1.0) for name in OF_MESSAGES},
}
"""Field of a record, after `stageR_` -> its chart and scale; tags are `CHART/stage0` or `CHART/stage0/replica1`."""
_TOTALS = {
    "idle_share": ("idle_share", 1.0),
    "weight_bytes": ("weights_MB", _MB),
    "activation_bytes": ("activations_MB", _MB),
    "memory_bytes": ("memory_MB", _MB),
}
"""Total of all stages -> its tag and scale."""
_OF_STAGE = re.compile(r"(stage\d+)_(?:(replica\d+)_)?(\w+)")


def points_of(record: Record) -> dict[str, float]:
    """The numbers of a record of metrics.jsonl: of some steps, of an epoch's end, or of an evaluation; else none."""
    points = _of_kind(record)
    for key, value in record.items():
        if (found := _OF_STAGE.fullmatch(key)) and value is not None:
            *worker, field = (part for part in found.groups() if part)
            name, scale = CHARTS[field]
            points["/".join([name, *worker])] = value * scale
    return {tag: value for tag, value in points.items() if value is not None}


def _of_kind(record: Record) -> dict[str, float | None]:
    match record["kind"]:
        case "interval":
            return {"train/loss": record["loss"], "train/lr": record["lr"], **_speeds(record, "throughput/")}
        case "epoch":
            losses = {"train/epoch_loss": record["loss"], "time/wall_s": record["wall_s"]}
            return {**losses, **_speeds(record, "throughput/epoch_")}
        case "eval":
            metrics = {f"eval/{name}": value for name, value in metrics_of(record).items()}
            return {**metrics, "time/eval_s": record["eval_s"]}
    return {}


def _speeds(record: Record, prefix: str) -> dict[str, float | None]:
    return {f"{prefix}{name}": record[name] for name in ALL_THROUGHPUTS if name in record}


def results(summary: Mapping[str, Any]) -> dict[str, float]:
    """The results of a run: metrics, times, throughput, and idle share and memory of all stages."""
    metrics = {f"{which}/{name}": value for which in ("final", "best") for name, value in summary[which].items()}
    numbers = {f"run/{name}": summary.get(name) for name in ("steps", "wall_s", "train_s", "eval_s", *ALL_THROUGHPUTS)}
    target = {"run/target_s": (summary.get("target") or {}).get("wall_s")}
    totals = totals_of_stages(summary.get("per_stage", ()))
    stages = {f"run/{tag}": totals[name] * scale for name, (tag, scale) in _TOTALS.items() if name in totals}
    return {name: value for name, value in {**metrics, **numbers, **target, **stages}.items() if value is not None}
