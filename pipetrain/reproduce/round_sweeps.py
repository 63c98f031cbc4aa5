"""The sweeps that a round of a target is run in: one, or one for each depth and learning rate that is best there."""

from collections.abc import Sequence
from pathlib import Path

from pipetrain.reproduce.field_map import best_rates
from pipetrain.reproduce.targets import BEST_RATE, Round

Sweep = Sequence[str]
"""The words of a command, without `pipetrain`."""


def sweeps_of(this: Round, outputs: Path, results: Path) -> list[Sweep]:
    """The commands of a round, in the order in which they are run.

    Args:
        this: the round.
        outputs: for the folders of runs.
        results: with what was kept of the rounds before it, which tells the best learning rates; no sweep without it.
    """
    if not this.at_best_rates:
        return [this.words(outputs)]
    others = [word for word in this.settings if word != BEST_RATE]
    best = best_rates(this.target.results(results) / "runs.csv")
    methods: dict[tuple[str, int], list[str]] = {}
    for (method, depth), rate in sorted(best.items()):
        methods.setdefault((rate, depth), []).append(method)
    commands: list[Sweep] = []
    for (rate, depth), names in methods.items():
        swept = [f"method={','.join(names)}"] if this.target.sweeps_methods else []
        narrowed = [*others, f"optimizer.lr={rate}", f"partition.stages={depth}", *swept]
        commands.append(this.target.words(this.runs(outputs) / f"lr_{rate}_stages_{depth}", narrowed))
    return commands
