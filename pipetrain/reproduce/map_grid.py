"""The grid of the map of the field: which methods, depths, learning rates and seeds its presets sweep."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from pipetrain.config.choices import brought, choice_of
from pipetrain.reproduce.targets import Target

_SWEPT = ("partition.stages", "optimizer.lr", "seed")


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
    sweeps = [_swept(Target(preset, scale)) for preset in presets]
    return Grid(
        sum(math.prod(map(len, sweep.values())) for sweep in sweeps),
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


def _swept(target: Target) -> Mapping[str, Sequence[str]]:
    """Setting -> its values, of the preset and of what the scale changes."""
    params = choice_of("experiment", target.experiment).content["hydra"]["sweeper"]["params"]
    changed = dict(word.split("=", 1) for word in target.settings if "=" in word)
    method = params.get("method") or brought("experiment", target.experiment)["method"]
    values = {"method": method} | {name: changed.get(name, params[name]) for name in _SWEPT}
    return {name: str(text).split(",") for name, text in values.items()}
