"""Claims of Zhang & Abdelrahman at their own network and data: the runs of `scripts/gpu_reproduction.sh`, judged."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from papers.claims import RankingClaim, SameRate, Verdict
from papers.difference import Relation
from papers.judgement import judge
from papers.results import Measured, measured_group
from papers.targets import FULL
from pipetrain.engine.errors import ConfigError
from pipetrain.reporting.sweep.compared_run import ComparedRun, Point
from pipetrain.reporting.sweep.groups import SweepGroup
from pipetrain.reporting.sweep.run_reader import read
from pipetrain.runner.terminal.text_table import text_lines
from pipetrain.runner.tracking.run_directory import runs_in

_RESNET = "resnet20"
_HYBRID = "hybrid"
_METRIC = "top1"
CLAIMS: Mapping[str, Sequence[RankingClaim]] = {
    "early_stages_harmless": [
        RankingClaim(_RESNET, "early", Relation.LIKE, ("baseline",), controls=(SameRate(_RESNET, "early", "baseline"),))
    ],
    "share_decides": [RankingClaim(_RESNET, "early", Relation.BETTER, ("late",))],
    "hybrid_recovers": [
        RankingClaim(_RESNET, _HYBRID, Relation.LIKE, ("baseline",)),
        RankingClaim(_RESNET, _HYBRID, Relation.BETTER, ("late",)),
    ],
}
"""Name in `claims.csv` -> what the runs have to show for it."""


@dataclass(frozen=True)
class RunsAtSize:
    """The runs as far as all of them have come.

    Attributes:
        groups: of the trainings, by name; without the hybrid while it has stale weights.
        epochs: that all runs have.
        planned: epochs of the paper.
    """

    groups: Sequence[SweepGroup]
    epochs: int
    planned: int

    @property
    def where(self) -> str:
        """Takes the place of the scale in a verdict."""
        return f"at the paper's network and data, {self.epochs} of {self.planned} epochs"


def read_runs(folder: Path) -> RunsAtSize:
    """The runs in a folder, each named by its training and seed, such as `early-0`.

    Raises:
        ConfigError: there are none, or one is damaged or was not evaluated yet.
    """
    runs = [read(run, {}) for run in runs_in(folder)]
    if not runs:
        raise ConfigError(f"{folder}: no runs; scripts/gpu_reproduction.sh makes them")
    for run in runs:
        if run.status == "damaged" or not (_by_epoch(run) or run.status == "diverged"):
            raise ConfigError(f"{run.path}: {run.reason or 'no evaluation yet'}; continue it first")
    epochs = min((max(_by_epoch(run)) for run in runs if run.status != "diverged"), default=0)
    groups: dict[str, list[ComparedRun]] = {}
    for run in sorted(runs, key=lambda each: each.path.name):
        if not _is_stale_hybrid(run, epochs):
            groups.setdefault(run.path.name.partition("-")[0], []).append(_until(run, epochs))
    planned = max(int(run.settings["train.epochs"]) for run in runs)
    return RunsAtSize([SweepGroup(name, found) for name, found in groups.items()], epochs, planned)


def verdicts(runs: RunsAtSize) -> Mapping[str, Verdict]:
    """Name in `claims.csv` -> the verdict of the runs, by the rules of all claims on training."""
    rates = {group.name: frozenset(float(run.settings["optimizer.lr"]) for run in group.runs) for group in runs.groups}
    groups = [measured_group(group, rates[group.name]) for group in runs.groups]
    made = {"command": "pipetrain run --multirun experiment=zhang/fig6_resnet20"}
    results = {_RESNET: Measured(_RESNET, FULL, _METRIC, groups, made, Path())}
    found = {name: judge(rules, results) for name, rules in CLAIMS.items()}
    return {name: _worded(verdict, runs) for name, verdict in found.items() if verdict}


def report(folder: Path) -> Iterator[str]:
    """The lines of a report on the runs in a folder; raises as `read_runs`."""
    runs = read_runs(folder)
    yield f"ResNet-20 on CIFAR-10, {runs.where}:"
    rows = [("", _METRIC, "runs")]
    for group in runs.groups:
        mean, spread = group.mean(_METRIC), group.deviation(_METRIC)
        shown = "" if mean is None else f"{mean:.2f}" + (f" ± {spread:.2f}" if spread is not None else "")
        rows.append((group.name, shown, ", ".join(f"{count} {status}" for status, count in group.statuses.items())))
    yield from text_lines(rows, "<><")
    found = verdicts(runs)
    for name in CLAIMS:
        if name not in found:
            yield f"{name}: not tested, the hybrid still has stale weights"
        else:
            yield f"{name}: {found[name].verdict}"
            yield from (f"    {line}" for line in found[name].why)


def _by_epoch(run: ComparedRun) -> Mapping[int, Point]:
    return {int(point.epoch): point for point in run.curves.get(_METRIC, ())}


def _is_stale_hybrid(run: ComparedRun, epochs: int) -> bool:
    """True for a hybrid that had no step without stale weights."""
    switch, point = run.settings.get("phases.0.steps"), _by_epoch(run).get(epochs)
    return switch is not None and point is not None and (point.step or 0) <= int(switch)


def _until(run: ComparedRun, epochs: int) -> ComparedRun:
    """The run as if it had ended after these epochs; one that diverged stays as it is."""
    if run.status == "diverged":
        return run
    known = {name: {int(point.epoch): point.value for point in curve} for name, curve in run.curves.items()}
    final = {name: known[name][epochs] for name in (_METRIC, "loss") if epochs in known.get(name, {})}
    numbers = {name: run.numbers[name] for name in ("first_loss",) if name in run.numbers}
    return replace(run, status="completed", reason=None, final=final, best={}, numbers=numbers)


def _worded(verdict: Verdict, runs: RunsAtSize) -> Verdict:
    def worded(text: str) -> str:
        return text.replace(f"at {FULL} scale", runs.where).replace(f"{_RESNET}, {FULL},", f"{_RESNET},")

    return Verdict(worded(verdict.verdict), [worded(line) for line in verdict.why])
