"""Measurements of experiments, written to and read from `results/PAPER/NAME/SCALE/`."""

import json
import math
import shlex
import statistics
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from papers.kept_runs import RUNS, Row, ended_runs, read_groups, rows_in, untimed, write_runs
from papers.presets import IN_CHECKOUT, composition, preset
from papers.targets import (
    FULL,
    SMALL,
    ReproductionTarget,
    command_of,
    has_small_scale,
    is_of_paper,
    with_presets,
    words_of,
)
from pipetrain.commands.run.sweep import number_of_runs
from pipetrain.data.files import strict_json
from pipetrain.engine.errors import ConfigError
from pipetrain.reporting.sweep.columns import MEASUREMENTS, TO_TARGET
from pipetrain.reporting.sweep.compared_run import TRAIN_LOSS, ComparedRun
from pipetrain.reporting.sweep.comparison import collect, ranked
from pipetrain.reporting.sweep.groups import SweepGroup
from pipetrain.reporting.sweep.slowdown import STEPS, Slowdown, baseline_of, slowdowns
from pipetrain.runner.tracking.files import write_whole

MADE = "made.json"
"""File with the command, seeds, versions, time and machine kind of what is kept, and the metric that ranks it."""
TARGETS = "targets"
"""In it, column of steps -> the loss that they were counted to."""
_OF_EVERY_COMMAND = ("experiment=", "hydra.", "resume=")
_LEARNED = 0.9
"""Largest ratio of the evaluation loss to the first training loss that counts as learning."""
STUCK = "learned nothing"
"""How runs ended that completed and learned nothing, where others of the same configuration learned."""
_COSTS = MEASUREMENTS.keys() - {*TO_TARGET}
"""Columns that say nothing of what was learned."""
STEPS_TO_LOSS = {"loss_steps": 0.7, "early_loss_steps": 0.1}
"""Column of the steps to the smoothed training loss of a baseline -> the share of its steps after which it has that."""


@dataclass(frozen=True)
class MeasuredGroup:
    """The runs of one configuration under several seeds.

    If some of the runs that completed learned and others did not, the latter are apart, and only in `ended` and `lost`.

    Attributes:
        name: its name in the experiment.
        completed: number of runs that completed.
        ended: status, or `STUCK` -> number of runs.
        means: column -> mean over seeds.
        deviations: column -> sample standard deviation over seeds; none of fewer than two.
        reached: number of completed runs that reached their target.
        by_seed: seed -> column -> value, of the completed runs.
        lost: seeds whose runs diverged, or learned nothing where others learned.
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
    lost: frozenset[int] = frozenset()

    @property
    def failed(self) -> int:
        """Number of runs that diverged, or learned nothing where others learned."""
        return self.ended.get("diverged", 0) + self.ended.get(STUCK, 0)

    @property
    def conclusive(self) -> int:
        """Number of runs that completed or failed."""
        return self.completed + self.failed

    @property
    def broken_off(self) -> int:
        """Number of runs that neither completed nor diverged, and so say nothing."""
        return sum(self.ended.values()) - self.conclusive

    @property
    def learned(self) -> bool:
        """True if the runs have learned anything, as far as their losses are known."""
        return self.completed > 0 and _has_learned(self.means)

    def same_bits(self, other: "MeasuredGroup") -> bool:
        """True if both have bit-identical final losses under each common seed, so that they computed the same."""
        losses, theirs = ({seed: run.get("loss") for seed, run in each.by_seed.items()} for each in (self, other))
        shared = losses.keys() & theirs.keys()
        return bool(shared) and all(losses[seed] is not None and losses[seed] == theirs[seed] for seed in shared)


@dataclass(frozen=True)
class Measured:
    """One experiment at one scale.

    Attributes:
        experiment: the preset, without its paper.
        scale: `small` or `full`.
        metric: metric that ranks its groups; None if they were not evaluated.
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
        """The settings that its command gave in addition to the preset, in the order given."""
        words = shlex.split(self.made["command"])
        given = words[words.index("--multirun") + 1 :]
        return [word for word in given if not word.startswith(_OF_EVERY_COMMAND)]

    @property
    def outdated(self) -> bool:
        """True if its preset has other settings at this scale than these runs had, or this scale no longer."""
        own = (word for word in shlex.split(self.made["command"]) if word.startswith("experiment="))
        experiment = next(own).partition("=")[2]
        if self.scale == SMALL and not has_small_scale(experiment):
            return True
        return self.changes != ReproductionTarget(experiment, self.scale).settings

    def changed(self, name: str) -> str | None:
        """The choice of a group, or the value of a setting, in place of the preset's; None if it is that."""
        given = (word.removeprefix(f"{name}=") for word in self.changes if word.startswith(f"{name}="))
        return next(given, None)

    @property
    def network(self) -> str | None:
        """The model in place of the preset's with its sizes, such as `resnet20 depth=8`; None if it is that."""
        sizes = (word.removeprefix("model.") for word in self.changes if word.startswith("model."))
        return " ".join(filter(None, (self.changed("model"), *sizes))) or None

    @property
    def data(self) -> str | None:
        """The data set in place of the preset's, with its folder if that is given; None if it is that."""
        return " ".join(filter(None, (self.changed("dataset"), self.changed("dataset.root")))) or None


Results = Mapping[str, Measured]
"""Experiment -> what it measured at the largest scale that was run."""


def read_results(folder: Path, paper: str) -> Results:
    """The stored results of a paper's experiments.

    Raises:
        ConfigError: a file cannot be read.
    """
    return {each.experiment: each for scale in (SMALL, FULL) for each in _at(folder / paper, scale)}


def _at(folder: Path, scale: str) -> Iterator[Measured]:
    for path in sorted(folder.glob(f"*/{scale}/{RUNS}")):
        try:
            made, rates = json.loads(path.with_name(MADE).read_text("utf-8")), _rates(rows_in(path))
            groups = [measured_group(group, rates[group.name]) for group in read_groups(path.parent)]
            yield Measured(path.parts[-3], scale, made["metric"], groups, made, path.parent)
        except (OSError, ValueError, KeyError) as error:
            raise ConfigError(f"{path.parent}: damaged results: {error}; measure them again, or remove them") from error


def _rates(rows: Iterable[Row]) -> Mapping[str, frozenset[float]]:
    """Name of a group -> the learning rates of its runs, as far as they were kept."""
    found: dict[str, frozenset[float]] = {}
    for row in rows:
        rate = {float(row["optimizer.lr"])} if row.get("optimizer.lr") else set()
        found[row["name"]] = found.get(row["name"], frozenset()) | rate
    return found


def measured_group(group: SweepGroup, rates: frozenset[float]) -> MeasuredGroup:
    """What the runs of a group show; `rates` are their learning rates."""
    ended: dict[str, int] = dict(group.statuses)
    runs = [(run.settings["seed"], run) for run in group.runs if "seed" in run.settings]
    completed = {seed: _finite(run.values) for seed, run in runs if run.status == "completed"}
    learned = {seed: columns for seed, columns in completed.items() if _has_learned(columns)}
    stuck = completed.keys() - learned.keys() if learned else set()
    counted = [run.values for run in group.completed or group.runs]
    means, deviations = _means_and_deviations(counted, dict.fromkeys(name for each in counted for name in each))
    if not group.completed:  # what was learned is from before they diverged, or were stopped
        means, deviations = ({name: each[name] for name in each if name in _COSTS} for each in (means, deviations))
    if stuck:
        ended = {**ended, "completed": ended["completed"] - len(stuck), STUCK: len(stuck)}
        means, deviations = _means_and_deviations(learned.values(), means)
    return MeasuredGroup(
        group.name,
        ended.get("completed", 0),
        ended,
        _finite(means),
        _finite(deviations),
        sum("target_epochs" in run.values for run in group.runs),
        learned if stuck else completed,
        rates,
        frozenset(seed for seed, run in runs if run.status == "diverged") | stuck,
    )


def _means_and_deviations(
    runs: Collection[Mapping[str, float]], names: Iterable[str]
) -> tuple[Mapping[str, float], Mapping[str, float]]:
    found = {name: [run[name] for run in runs if name in run] for name in names}
    means = {name: statistics.fmean(values) for name, values in found.items() if values}
    return means, {name: statistics.stdev(values) for name, values in found.items() if len(values) > 1}


def _has_learned(columns: Mapping[str, float]) -> bool:
    """True unless the losses are known and show that nothing was learned."""
    first, last = columns.get("first_loss"), columns.get("loss")
    return first is None or last is None or last <= _LEARNED * first


def _finite(columns: Mapping[str, float]) -> Mapping[str, float]:
    return {name: float(value) for name, value in columns.items() if math.isfinite(value)}


_MADE_WITH = ("pipetrain_version", "torch_version", "python_version", "git_commit", "platform", "cpu", "cores", "gpus")


def keep_results(target: ReproductionTarget, runs: Path, folder: Path, *, timed: bool = True) -> list[Path]:
    """Writes runs.csv, of a paper's experiment curves.json, and made.json; returns the files.

    Args:
        target: what was run.
        runs: the folder of its sweeps.
        folder: for the files.
        timed: True if times and throughput are kept; they say little where other work shared the machine.

    Raises:
        ConfigError: there are no runs, or one cannot be read.
    """
    apart = {runs / each.name for each in target.rounds if each.compares}
    found = collect(sorted({*runs.iterdir()} - apart) if apart else [runs], {})
    if found.skipped:
        damaged = found.skipped[0]
        raise ConfigError(f"{damaged.path}: a damaged run: {damaged.reason}; remove it, or run it again")
    remarks = preset(target.experiment).remarks
    compared = ranked(found, remarks.get("metric"))
    made = made_with(target.words(Path("DIR")), runs, compared.groups) | {"timed": timed, "metric": compared.metric}
    groups = [
        replace(group, runs=[kept_run(run, runs, timed=timed) for run in without_repeats(group)])
        for group in compared.groups
    ]
    if found_steps := steps_to_loss(target, compared.groups):
        groups = with_steps(groups, found_steps)
        made[TARGETS] = {column: each.target for column, each in found_steps.items()}
    folder.mkdir(parents=True, exist_ok=True)
    files = write_runs(folder, groups, whole=is_of_paper(target.experiment))
    write_whole(folder / MADE, strict_json.dumps(made, indent=1) + "\n")
    return [*files, folder / MADE]


def has_every_run(target: ReproductionTarget, folder: Path) -> bool:
    """True if all runs of a target's sweeps are kept already, as the same command made them.

    Args:
        target: what is to be run.
        folder: of what is kept of it.
    """
    if not made_by(target.words(Path("DIR")), folder):
        return False
    params = composition([f"experiment={target.experiment}"]).hydra.sweeper.params
    sweeps = [each.words(Path("DIR"))[2:] for each in target.rounds if not each.compares]
    planned = sum(number_of_runs(words, params) or 0 for words in sweeps)
    return len(ended_runs([folder / RUNS])) == planned


def made_of(folder: Path) -> Mapping[str, Any]:
    """Content of `made.json`; empty if there is none."""
    path = folder / MADE
    return dict(json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else {}


def rows_made_by(words: Sequence[str], folder: Path) -> list[Row]:
    """The runs that are kept in a folder and ended, if this command made them; none if it did not."""
    return ended_runs([folder / RUNS]) if made_by(words, folder) else []


def made_by(words: Sequence[str], folder: Path) -> bool:
    """True if what is kept in a folder is from this command, and so from the settings of today."""
    return words_of(made_of(folder).get("command", "")) == list(words)


def without_repeats(group: SweepGroup) -> list[ComparedRun]:
    """The runs of a group without the completed ones that a newer run of the same seed replaces."""
    counted = {id(run) for run in group.counted}
    return [run for run in group.runs if run.status != "completed" or id(run) in counted]


def steps_to_loss(
    target: ReproductionTarget, groups: Sequence[SweepGroup], known: Mapping[str, float] | None = None
) -> Mapping[str, Slowdown]:
    """Column -> the steps that each group takes to a loss of the baseline; none if there is no baseline.

    Args:
        target: what was run.
        groups: its groups.
        known: column -> the loss, if the baseline is not among the groups; with no entries, nothing is known.
    """
    remarks = preset(target.experiment).remarks
    completed = [number for number, group in enumerate(groups) if group.completed]
    if "slowdown" not in remarks or not completed or known == {}:
        return {}
    columns = STEPS_TO_LOSS if known is None else {column: STEPS_TO_LOSS[column] for column in known}
    if known is not None:
        at = completed[0]
    else:
        try:
            at = baseline_of(groups, remarks["slowdown"])
        except ConfigError:  # it has not run yet
            return {}
        given = remarks.get("small_loss") if target.scale == SMALL else None
        known = dict.fromkeys(STEPS_TO_LOSS, float(given)) if given else {}
    asked = {column: {TRAIN_LOSS: known[column]} if column in known else {} for column in columns}
    found = {column: slowdowns(groups, at, asked[column], share)[0] for column, share in columns.items()}
    return {column: each for column, each in found.items() if each.name == TRAIN_LOSS}


def with_steps(groups: Sequence[SweepGroup], found: Mapping[str, Slowdown]) -> list[SweepGroup]:
    """The groups, of which the runs that reach a loss have their number of steps to it in its column."""
    found_runs = []
    for number, group in enumerate(groups):
        runs = list(group.runs)
        for column, slowdown in found.items():
            row = slowdown.rows[number]
            taken = {seed: steps for seed, steps in row.amounts.get(STEPS, {}).items() if math.isfinite(steps)}
            runs = [
                replace(run, numbers={**run.numbers, column: taken[run.seeds]}) if run.seeds in taken else run
                for run in runs
            ]
        found_runs.append(replace(group, runs=runs))
    return found_runs


def kept_run(run: ComparedRun, runs: Path, *, timed: bool) -> ComparedRun:
    """The run by its name in the sweep, which says nothing of where it was made, and without what is not kept."""
    named = replace(run, path=run.path.relative_to(runs))
    return named if timed else untimed(named)


def made_with(words: Sequence[str], runs: Path, groups: Sequence[SweepGroup]) -> dict[str, Any]:
    """The command, versions, machine kind, seeds and time; neither names of machines nor folders of runs."""
    every = [run for group in groups for run in group.runs]
    return {
        "command": command_of(with_presets(words, IN_CHECKOUT)),
        "seeds": sorted({run.settings["seed"] for run in every if "seed" in run.settings}),
        "runs": len(every),
        "wall_s": sum(run.numbers.get("wall_s", 0.0) for run in every),
        "made_with": next(_versions(runs), {}),
    }


def _versions(runs: Path) -> Iterator[Mapping[str, Any]]:
    for path in sorted(runs.rglob("summary.json")):
        summary = json.loads(path.read_text(encoding="utf-8"))
        yield {name: summary[name] for name in _MADE_WITH if name in summary}
