"""The sweeps that a round of a target is run in."""

from collections.abc import Sequence
from pathlib import Path

from pipetrain.reproduce.field_map import best_rates, ended_runs
from pipetrain.reproduce.map_grid import MapRun, runs_of
from pipetrain.reproduce.targets import Round

Sweep = Sequence[str]
"""The words of a command, without `pipetrain`."""


def sweeps_of(this: Round, outputs: Path, results: Path) -> list[Sweep]:
    """The commands of a round, in the order in which they are run.

    It is one sweep. What is left of a round of the map, or has learning rates of its own at each depth, is several.

    Args:
        this: the round.
        outputs: for the folders of runs.
        results: with what was kept of the map: runs that are not run again, and tell which learning rates are best.
    """
    if not this.target.of_map:
        return [this.words(outputs)]
    rows = ended_runs([this.target.results(results) / "runs.csv"])
    wanted, kept = runs_of(this, best_rates(rows)), {MapRun.of(row) for row in rows}
    left = [run for run in wanted if run not in kept]
    if left == wanted and not this.at_best_rates:
        return [this.words(outputs)]
    return [_sweep(this, outputs, runs) for runs in _products(left)]


def _products(runs: Sequence[MapRun]) -> list[list[MapRun]]:
    """The runs, those together that are a sweep: of one depth and rate, and methods with the same seeds."""
    seeds: dict[tuple[int, float, str], list[int]] = {}
    for run in sorted(runs):
        seeds.setdefault((run.depth, run.rate, run.method), []).append(run.seed)
    found: dict[tuple[int, float, tuple[int, ...]], list[MapRun]] = {}
    for run in sorted(runs):
        same = tuple(seeds[run.depth, run.rate, run.method])
        found.setdefault((run.depth, run.rate, same), []).append(run)
    return list(found.values())


def _sweep(this: Round, outputs: Path, runs: Sequence[MapRun]) -> Sweep:
    methods, depths, rates, seeds = (list(dict.fromkeys(each)) for each in zip(*runs, strict=True))
    swept = {
        "seed": seeds,
        "optimizer.lr": [f"{rate:g}" for rate in rates],
        "partition.stages": depths,
        **({"method": methods} if this.target.sweeps_methods else {}),
    }
    words = [f"{name}={','.join(map(str, values))}" for name, values in swept.items()]
    folder = "_".join(["lr", *swept["optimizer.lr"], "stages", *map(str, depths), "seed", *map(str, seeds)])
    return this.target.words(this.runs(outputs) / folder, words)
