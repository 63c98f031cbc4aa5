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
    return [_sweep(this, outputs, *each) for each in _products(left)]


def _products(runs: Sequence[MapRun]) -> list[tuple[int, float, Sequence[int], list[str]]]:
    """The runs as sweeps: (depth, rate, seeds, methods), where methods have the same seeds."""
    seeds: dict[tuple[int, float, str], list[int]] = {}
    for method, depth, rate, seed in sorted(runs):
        seeds.setdefault((depth, rate, method), []).append(seed)
    methods: dict[tuple[int, float, tuple[int, ...]], list[str]] = {}
    for (depth, rate, method), missing in seeds.items():
        methods.setdefault((depth, rate, tuple(missing)), []).append(method)
    return [(*shared, names) for shared, names in methods.items()]


def _sweep(this: Round, outputs: Path, depth: int, rate: float, seeds: Sequence[int], methods: Sequence[str]) -> Sweep:
    words = [f"seed={','.join(map(str, seeds))}", f"optimizer.lr={rate:g}", f"partition.stages={depth}"]
    if this.target.sweeps_methods:
        words.append(f"method={','.join(methods)}")
    folder = "_".join(["lr", f"{rate:g}", "stages", str(depth), "seed", *map(str, seeds)])
    return this.target.words(this.runs(outputs) / folder, words)
