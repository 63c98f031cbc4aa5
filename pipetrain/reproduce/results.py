"""What a paper's experiments measured, read from `results/PAPER/NAME/SCALE/`."""

import csv
import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipetrain.errors import ConfigError
from pipetrain.reproduce.targets import FULL, SMALL

_OF_EVERY_COMMAND = ("experiment=", "hydra.", "resume=")
_LEARNED = 0.9
"""A loss of evaluation up to so many times the first one of training has come of learning."""


@dataclass(frozen=True)
class MeasuredGroup:
    """The runs of one configuration under several seeds.

    Attributes:
        name: what sets it apart in its experiment.
        completed: how many runs completed.
        ended: how the runs ended -> how many.
        means: column -> mean over seeds.
        deviations: column -> sample standard deviation over seeds; none of fewer than two.
        reached: how many completed runs reached their target.
        by_seed: seed -> column -> value, of the completed runs.
        rates: the learning rates of its runs.
    """

    name: str
    completed: int
    ended: Mapping[str, int]
    means: Mapping[str, float]
    deviations: Mapping[str, float]
    reached: int
    by_seed: Mapping[int, Mapping[str, float]] = field(default_factory=dict)
    rates: frozenset[float] = frozenset()

    @property
    def diverged(self) -> int:
        """How many runs diverged."""
        return self.ended.get("diverged", 0)

    @property
    def learned(self) -> bool:
        """Whether the runs have learned anything, as far as their losses are known."""
        first, last = self.means.get("first_loss"), self.means.get("loss")
        return self.completed > 0 and (first is None or last is None or last <= _LEARNED * first)

    def same_bits(self, other: "MeasuredGroup") -> bool:
        """Whether both have the same final loss under each seed, to the last bit, so that they computed the same."""
        losses, theirs = ({seed: run.get("loss") for seed, run in each.by_seed.items()} for each in (self, other))
        shared = losses.keys() & theirs.keys()
        return bool(shared) and all(losses[seed] is not None and losses[seed] == theirs[seed] for seed in shared)


@dataclass(frozen=True)
class Measured:
    """One experiment at one scale.

    Attributes:
        experiment: the preset, without its paper.
        scale: `small` or `full`.
        metric: what its groups are ranked by; None where they were not evaluated.
        groups: best first.
        made: the command, seeds, versions, time and machine kind.
        folder: of its files.
    """

    experiment: str
    scale: str
    metric: str | None
    groups: Sequence[MeasuredGroup]
    made: Mapping[str, Any]
    folder: Path

    @property
    def changes(self) -> Sequence[str]:
        """The settings that its command gave beside the preset, in the order given."""
        words = shlex.split(self.made["command"])
        given = words[words.index("--multirun") + 1 :]
        return [word for word in given if not word.startswith(_OF_EVERY_COMMAND)]

    def changed(self, name: str) -> str | None:
        """The choice of a group, or the value of a setting, in place of the preset's; None where it is that."""
        given = (word.removeprefix(f"{name}=") for word in self.changes if word.startswith(f"{name}="))
        return next(given, None)

    @property
    def network(self) -> str | None:
        """The model in place of the preset's with its sizes, such as `resnet20 depth=8`; None where it is that."""
        sizes = (word.removeprefix("model.") for word in self.changes if word.startswith("model."))
        return " ".join(filter(None, (self.changed("model"), *sizes))) or None

    @property
    def data(self) -> str | None:
        """The data set in place of the preset's, with its folder if that is given; None where it is that."""
        return " ".join(filter(None, (self.changed("dataset"), self.changed("dataset.root")))) or None


Results = Mapping[str, Measured]
"""Experiment -> what it measured at the largest scale that was run."""


def results_of(folder: Path, paper: str) -> Results:
    """All that there is of a paper's experiments.

    Raises:
        ConfigError: a file cannot be read.
    """
    return {each.experiment: each for scale in (SMALL, FULL) for each in _at(folder / paper, scale)}


def _at(folder: Path, scale: str) -> Iterator[Measured]:
    for path in sorted(folder.glob(f"*/{scale}/sweep.json")):
        try:
            sweep, made = (json.loads(path.with_name(name).read_text("utf-8")) for name in (path.name, "made.json"))
            rates = _rates(path.with_name("runs.csv"))
            groups = [_group(group, rates.get(group["name"], frozenset())) for group in sweep["groups"]]
            yield Measured(path.parts[-3], scale, sweep["metric"], groups, made, path.parent)
        except (OSError, ValueError, KeyError) as error:
            raise ConfigError(f"{path.parent}: damaged results: {error}; make them anew, or remove them") from error


def _rates(path: Path) -> Mapping[str, frozenset[float]]:
    """Name of a group -> the learning rates of its runs, as far as they were kept."""
    found: dict[str, frozenset[float]] = {}
    if path.is_file():
        with path.open(encoding="utf-8", newline="") as file:
            for row in csv.DictReader(file):
                rate = {float(row["optimizer.lr"])} if row.get("optimizer.lr") else set()
                found[row["name"]] = found.get(row["name"], frozenset()) | rate
    return found


def _group(content: Mapping[str, Any], rates: frozenset[float]) -> MeasuredGroup:
    ended = content["statuses"]
    return MeasuredGroup(
        content["name"],
        ended.get("completed", 0),
        ended,
        _known(content["mean"]),
        _known(content["standard_deviation"]),
        sum(run.get("target_epochs") is not None for run in content["runs"]),
        {run["seed"]: _columns(run) for run in content["runs"] if run.get("status") == "completed" and "seed" in run},
        rates,
    )


def _columns(run: Mapping[str, Any]) -> Mapping[str, float]:
    """The columns of one run, as the means over all have them."""
    best = {f"best_{name}": value for name, value in run.get("best", {}).items()}
    numbers = {**run, **run.get("final", {}), **best}
    return {name: float(value) for name, value in numbers.items() if isinstance(value, int | float)}


def _known(columns: Mapping[str, float | None]) -> Mapping[str, float]:
    return {name: value for name, value in columns.items() if value is not None}
