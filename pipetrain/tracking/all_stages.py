"""What was measured of all stages together."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

_BYTES = 4


def of_all_stages(stages: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """What is known of `per_stage` of a summary, taken together.

    `idle_share` is the mean, `weight_bytes` and `activation_bytes` are sums, `stage_bytes` are both of the stage that
    has the most, `memory_bytes` is that of the process that has the most, and `copies` are the weights held over those
    of one version.
    """
    weights = _known(stages, "weight_bytes_peak")
    activations = _known(stages, "activation_bytes_peak")
    one = _BYTES * sum(_known(stages, "parameters"))
    found = {
        "idle_share": statistics.fmean(idle) if (idle := _known(stages, "idle_share")) else None,
        "weight_bytes": sum(weights) or None,
        "activation_bytes": sum(activations) or None,
        "stage_bytes": max(map(sum, zip(weights, activations, strict=False)), default=None),
        "memory_bytes": max(_known(stages, "peak_memory_bytes"), default=None),
        "copies": sum(weights) / one if weights and one else None,
    }
    return {name: value for name, value in found.items() if value is not None}


def _known(stages: Sequence[Mapping[str, Any]], name: str) -> list[float]:
    return [stage[name] for stage in stages if stage.get(name) is not None]
