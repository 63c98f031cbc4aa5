"""The records of metrics.jsonl: an `interval` of steps, the end of an `epoch`, an evaluation (`eval`); all flat."""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from pipetrain.tracking.strict_json import number

Record = dict[str, Any]

MEASURED_OF_STAGES = (
    "idle_share",
    "weight_versions_max",
    "weight_bytes_peak",
    "activation_bytes_peak",
    "peak_memory_bytes",
)
_OF_STAGE = re.compile(r"stage(\d+)_")
STALENESS = ("forward_staleness", "backward_staleness")


def of_stages(reports: Sequence[Mapping[str, Any]]) -> Record:
    """What was measured of each stage, as `stage0_idle_share`, and of its replicas, as `stage0_replica1_idle_share`.

    Of the staleness values seen, the largest.
    """
    record: Record = {}
    for r, report in enumerate(reports):
        record.update(_measured(f"stage{r}_", report))
        for replica, own in enumerate(report.get("replicas", ())):
            record.update(_measured(f"stage{r}_replica{replica}_", own))
    return record


def _measured(prefix: str, report: Mapping[str, Any]) -> Record:
    measured = {f"{prefix}{name}": report.get(name) for name in MEASURED_OF_STAGES}
    return measured | {f"{prefix}{name}": max(report.get(name) or [], default=None) for name in STALENESS}


def measured_of_stages(record: Mapping[str, Any], num_stages: int) -> list[Record]:
    """What such a record tells of each stage, as its report has it; nothing where it is of fewer or more stages."""
    stages = {int(found[1]) for name in record if (found := _OF_STAGE.match(name))}
    if stages != set(range(num_stages)):
        return [{} for _ in range(num_stages)]
    return [{name: record[f"stage{r}_{name}"] for name in MEASURED_OF_STAGES} for r in range(num_stages)]


def of_evaluation(metrics: Mapping[str, float]) -> Record:
    """The metrics of an evaluation, as `eval_loss`."""
    return {f"eval_{name}": value for name, value in metrics.items()}


def metrics_of(record: Mapping[str, Any]) -> dict[str, float]:
    """The metrics of a record of kind `eval`, by their names; NaN for what was not finite."""
    return {
        name.removeprefix("eval_"): number(value)
        for name, value in record.items()
        if name.startswith("eval_") and name != "eval_s"
    }


def metric_shown(value: float | None) -> str:
    """A metric as the terminal shows it, just measured or read back."""
    return "not finite" if value is None or not math.isfinite(value) else f"{value:.4g}"
