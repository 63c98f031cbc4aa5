"""Hyperparameters and results of a run for TensorBoard's HPARAMS page."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pipetrain.config.schema import TARGET, leaves
from pipetrain.tracking.summary import totals_of_stages
from pipetrain.tracking.throughput import ALL_THROUGHPUTS

_MB = 1e-6
_OF_ALL_STAGES = {
    "idle_share": ("idle_share", 1.0),
    "weight_bytes": ("weights_MB", _MB),
    "activation_bytes": ("activations_MB", _MB),
    "memory_bytes": ("memory_MB", _MB),
}


def values_set(config: Mapping[str, Any], choices: Mapping[str, str]) -> dict[str, Any]:
    """Every choice and every value of a configuration, by its name on the command line; what is null is left out."""
    made = {group: choice for group, choice in choices.items() if choice != "None"}
    return {**made, **dict(_values(config, ""))}


def _values(section: Mapping[str, Any], above: str) -> Iterator[tuple[str, Any]]:
    for name, value in leaves(section, above):
        if isinstance(value, list) and value and isinstance(value[0], Mapping):
            yield from _values({str(number): each for number, each in enumerate(value)}, name)
        elif value is not None and name.rpartition(".")[2] != TARGET:
            yield name, value if isinstance(value, bool | int | float | str) else str(value)


def results(summary: Mapping[str, Any]) -> dict[str, float]:
    """The numbers that a run came to: metrics, times, throughput, and idle share and memory of all stages."""
    metrics = {f"{which}/{name}": value for which in ("final", "best") for name, value in summary[which].items()}
    numbers = {f"run/{name}": summary.get(name) for name in ("steps", "wall_s", "train_s", "eval_s", *ALL_THROUGHPUTS)}
    target = {"run/target_s": (summary.get("target") or {}).get("wall_s")}
    found = {**metrics, **numbers, **target, **_of_all_stages(summary["per_stage"])}
    return {name: value for name, value in found.items() if value is not None}


def _of_all_stages(stages: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """The idle share, and memory in MB."""
    found = totals_of_stages(stages)
    return {f"run/{tag}": found[name] * scale for name, (tag, scale) in _OF_ALL_STAGES.items() if name in found}
