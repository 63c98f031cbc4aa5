"""The grid of the map of the field: which methods, depths, learning rates and seeds its presets sweep."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from pipetrain.config.choices import brought, choice_of
from pipetrain.reproduce.targets import Target

_RATE = "optimizer.lr"
_SWEPT = ("partition.stages", _RATE, "seed")


@dataclass(frozen=True)
class Grid:
    """What is swept, or was measured of it.

    Attributes:
        runs: how many there are.
        methods: by name.
        depths: numbers of stages.
        rates: learning rates.
        seeds: of the runs.
    """

    runs: int
    methods: frozenset[str]
    depths: frozenset[int]
    rates: frozenset[float]
    seeds: frozenset[int]


def planned(presets: Iterable[str], scale: str) -> Grid:
    """All that these presets sweep at a scale."""
    targets = [Target(preset, scale) for preset in presets]
    sweeps = [_swept(target) for target in targets]
    return Grid(
        sum(_runs(target, sweep) for target, sweep in zip(targets, sweeps, strict=True)),
        frozenset(name for sweep in sweeps for name in sweep["method"]),
        frozenset(int(text) for sweep in sweeps for text in sweep["partition.stages"]),
        frozenset(float(text) for sweep in sweeps for text in sweep["optimizer.lr"]),
        frozenset(int(text) for sweep in sweeps for text in sweep["seed"]),
    )


def measured(rows: Sequence[Mapping[str, str]]) -> Grid:
    """All that there are runs of."""
    return Grid(
        len(rows),
        frozenset(row["method"] for row in rows),
        frozenset(int(row["partition.stages"]) for row in rows),
        frozenset(float(row["optimizer.lr"]) for row in rows),
        frozenset(int(row["seed"]) for row in rows),
    )


def _runs(target: Target, sweep: Mapping[str, Sequence[str]]) -> int:
    """How many runs its rounds have; one at the best learning rates has a single one for each place and seed."""
    counts = []
    for each in target.rounds:
        left = {**sweep, **_values(each.settings)}
        counts.append(math.prod(len(values) for values in left.values()))
    return sum(counts)


def _swept(target: Target) -> Mapping[str, Sequence[str]]:
    """Setting -> its values, of the preset and of what the scale changes."""
    params = choice_of("experiment", target.experiment).content["hydra"]["sweeper"]["params"]
    changed = _values(target.settings)
    method = params.get("method") or brought("experiment", target.experiment)["method"]
    values = {"method": method} | {name: params[name] for name in _SWEPT}
    return {name: changed.get(name, str(text).split(",")) for name, text in values.items()}


def _values(words: Sequence[str]) -> Mapping[str, Sequence[str]]:
    """Setting -> the values that words give it."""
    return {name: text.split(",") for name, _, text in (word.partition("=") for word in words)}
