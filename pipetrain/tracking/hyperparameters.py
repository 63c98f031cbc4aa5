"""What TensorBoard's page of hyperparameters shows of a run: what was set, and what came of it."""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pipetrain.tracking.throughput import THROUGHPUTS

_MB = 1e-6
_TARGET = "_target_"


def values_set(config: Mapping[str, Any], choices: Mapping[str, str]) -> dict[str, Any]:
    """Every choice and every value of a configuration, by its name on the command line; what is null is left out."""
    made = {group: choice for group, choice in choices.items() if choice != "None"}
    return {**made, **dict(_leaves(config, ""))}


def _leaves(section: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for key, value in section.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{name}.")
        elif isinstance(value, list) and value and isinstance(value[0], Mapping):
            yield from _leaves({str(number): each for number, each in enumerate(value)}, f"{name}.")
        elif value is not None and key != _TARGET:
            yield name, value if isinstance(value, bool | int | float | str) else str(value)


def results(summary: Mapping[str, Any]) -> dict[str, float]:
    """The numbers that a run came to: metrics, times, throughput, and idle share and memory of all stages."""
    metrics = {f"{which}/{name}": value for which in ("final", "best") for name, value in summary[which].items()}
    numbers = {f"run/{name}": summary.get(name) for name in ("steps", "wall_s", "train_s", "eval_s", *THROUGHPUTS)}
    target = {"run/target_s": (summary.get("target") or {}).get("wall_s")}
    found = {**metrics, **numbers, **target, **_of_all_stages(summary["per_stage"])}
    return {name: value for name, value in found.items() if value is not None}


def _of_all_stages(stages: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """The mean idle share, the sums of weights and activations, and the memory of the process that has the most."""
    found = {
        "run/idle_share": statistics.fmean(_known(stages, "idle_share") or [float("nan")]),
        "run/weights_MB": sum(_known(stages, "weight_bytes_peak")) * _MB,
        "run/activations_MB": sum(_known(stages, "activation_bytes_peak")) * _MB,
        "run/memory_MB": max(_known(stages, "peak_memory_bytes"), default=0) * _MB,
    }
    return {name: value for name, value in found.items() if value > 0 or (name == "run/idle_share" and value == 0)}


def _known(stages: Sequence[Mapping[str, Any]], name: str) -> list[float]:
    return [stage[name] for stage in stages if stage.get(name) is not None]
