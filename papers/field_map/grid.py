"""The grid of the map of the field: which methods, depths, learning rates and seeds its presets sweep."""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

from papers.targets import ReproductionTarget, SweepRound
from pipetrain.config.choices import choice_of, group_overrides_of

_METHOD, _STAGES, _RATE, _SEED = "method", "partition.stages", "optimizer.lr", "seed"


class MapRun(NamedTuple):
    """Settings that identify a run on its network.

    Attributes:
        method: by name.
        depth: the number of stages.
        rate: the learning rate.
        seed: of the run.
    """

    method: str
    depth: int
    rate: float
    seed: int

    @classmethod
    def of(cls, row: Mapping[str, str]) -> Self:
        """The run of a row of `runs.csv`."""
        return cls(row["method"], int(row["partition.stages"]), float(row["optimizer.lr"]), int(row["seed"]))


Place = tuple[str, int]
"""A method and a depth."""


@dataclass(frozen=True)
class Grid:
    """Grid of a sweep, planned or measured.

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
    targets = [ReproductionTarget(preset, scale) for preset in presets]
    return _grid([run for target in targets for each in target.rounds for run in runs_of(each, _any_rates(target))])


def measured(rows: Iterable[Mapping[str, str]]) -> Grid:
    """All that there are runs of."""
    return _grid([MapRun.of(row) for row in rows])


def runs_of(this: SweepRound, best: Mapping[Place, float]) -> list[MapRun]:
    """All runs of a round.

    Args:
        this: the round.
        best: the learning rate of each method and depth, for a round at the best ones.
    """
    left = {**_swept(this.target), **_values(this.settings)}
    depths, seeds = ([int(text) for text in left[name]] for name in (_STAGES, _SEED))
    if this.at_best_rates:
        return [MapRun(*place, rate, seed) for place, rate in best.items() for seed in seeds]
    rates = [float(text) for text in left[_RATE]]
    return [MapRun(*each) for each in itertools.product(left[_METHOD], depths, rates, seeds)]


def _any_rates(target: ReproductionTarget) -> Mapping[Place, float]:
    """A learning rate for each method and depth, as the best ones are not known before the runs."""
    swept = _swept(target)
    return {(method, int(depth)): float(swept[_RATE][0]) for method in swept[_METHOD] for depth in swept[_STAGES]}


def _grid(runs: Sequence[MapRun]) -> Grid:
    methods, depths, rates, seeds = (frozenset(each) for each in zip(*runs, strict=True)) if runs else [frozenset()] * 4
    return Grid(len(runs), methods, depths, rates, seeds)


def _swept(target: ReproductionTarget) -> Mapping[str, Sequence[str]]:
    """Setting -> its values, of the preset and of what the scale changes."""
    params = choice_of("experiment", target.experiment).content["hydra"]["sweeper"]["params"]
    changed = _values(target.settings)
    method = params.get(_METHOD) or group_overrides_of("experiment", target.experiment)[_METHOD]
    values = {_METHOD: method} | {name: params[name] for name in (_STAGES, _RATE, _SEED)}
    return {name: changed.get(name, str(text).split(",")) for name, text in values.items()}


def _values(words: Sequence[str]) -> Mapping[str, Sequence[str]]:
    """Setting -> the values that words give it."""
    return {name: text.split(",") for name, _, text in (word.partition("=") for word in words)}
