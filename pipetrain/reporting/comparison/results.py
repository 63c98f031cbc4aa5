"""Results of a comparison so far: its report, and the files in its folder."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from pipetrain.data.files import strict_json
from pipetrain.reporting.comparison.contenders import Contender
from pipetrain.reporting.comparison.costs import Costs
from pipetrain.reporting.comparison.runs import FAILED, PlannedRun
from pipetrain.reporting.comparison.tuning import Search
from pipetrain.reporting.steps_to_loss import SHARE
from pipetrain.reporting.sweep import sweep_files
from pipetrain.reporting.sweep.columns import PREDICTED_STAGE, PREDICTED_STEP
from pipetrain.reporting.sweep.compared_run import TRAIN_LOSS, ComparedRun, Curve, is_seed
from pipetrain.reporting.sweep.comparison import ComparedGroups
from pipetrain.reporting.sweep.fastest import efforts_of, fastest_first, sentence_on
from pipetrain.reporting.sweep.groups import SweepGroup, name_of, short_settings
from pipetrain.reporting.sweep.slowdown import SECONDS, Slowdown, slowdown_to
from pipetrain.runner.terminal.text_table import csv_table
from pipetrain.runner.tracking.files import write_whole
from pipetrain.runner.tracking.throughput import ALL_THROUGHPUTS, PREDICTED

FILES = ("comparison.md", "comparison.json", "comparison.png", "comparison.html", "runs.csv")
Ended = Sequence[tuple[PlannedRun, ComparedRun]]


@dataclass(frozen=True)
class Outcome:
    """Runs of a contender, and the state of its tuning.

    Attributes:
        tuning: the state of its search.
        trials: the runs that tuned it and have ended.
        reported: the runs with the reported seeds.
    """

    contender: Contender
    tuning: Search
    trials: Ended
    reported: Ended

    @property
    def group(self) -> SweepGroup:
        """The reported runs, named after what distinguishes the contender and what was chosen for it."""
        own, chosen = self.contender.named, (word.partition("=") for word in self.tuning.best or ())
        tuned = {name.lstrip("+"): value for name, _, value in chosen}
        named = {**own, **short_settings([*own, *tuned], tuned)}
        return SweepGroup(name_of(named), [_costed(*each) for each in self.reported], named)


def _costed(planned: PlannedRun, run: ComparedRun) -> ComparedRun:
    """The run with its seed in the comparison alone, as a method's own may be fixed, and with the predicted costs."""
    costs, steps = planned.contender.costs, planned.contender.steps
    settings = {name: value for name, value in run.settings.items() if not is_seed(name)}
    curves = {name: _timed(curve, costs) for name, curve in run.curves.items() if name not in ALL_THROUGHPUTS}
    step_s, samples = costs.seconds(steps) / steps if costs.step_s else None, run.per_step.get("samples")
    predicted = {
        PREDICTED_STAGE: costs.largest_stage,
        PREDICTED_STEP: step_s and 1000 * step_s,
        PREDICTED: step_s and samples and samples / step_s,
    }
    return replace(
        run,
        settings={**settings, "seed": planned.seed},
        numbers=_known({**run.numbers, **dict.fromkeys(ALL_THROUGHPUTS), **predicted}),
        per_step=_known({**run.per_step, SECONDS: step_s}),
        curves=curves,
        seconds_of=costs.seconds if costs.step_s else None,
    )


def _known(numbers: Mapping[str, float | None]) -> dict[str, float]:
    return {name: value for name, value in numbers.items() if value is not None}


def _timed(curve: Curve, costs: Costs) -> Curve:
    return [each._replace(seconds=costs.seconds(each.step) if costs.step_s and each.step else None) for each in curve]


@dataclass(frozen=True)
class Comparison:
    """The contenders and what became of them.

    Attributes:
        folder: of its runs and files.
        baseline: the method to compare with, in its first configuration.
        target: metric and value that were asked for, if any.
        seeds: number of seeds that were asked for.
    """

    folder: Path
    outcomes: Sequence[Outcome]
    baseline: str
    target: tuple[str, float] | None
    seeds: int

    @property
    def failed(self) -> bool:
        """True if any run failed."""
        return any(run.status == FAILED for each in self.outcomes for _, run in (*each.trials, *each.reported))

    @cached_property
    def report(self) -> ComparedGroups:
        """The configurations with results, the fastest first, and the sentence that says whether the seeds decide."""
        shown = [each for each in self.outcomes if each.reported]
        metric = self._baseline.contender.metric
        compared = ComparedGroups([each.group for each in shown], evaluated=metric, remarks=self.notes)
        found = self._slowdown(shown, compared.groups)
        if found is None:
            return compared._replace(heads=[self._without_target])
        unfit = {number for number, each in enumerate(shown) if not each.contender.costs.fits}
        if len(unfit) == len(shown):
            return compared._replace(heads=["No configuration fits into the memory of its devices."])
        order = fastest_first(efforts_of(found), unfit)
        groups = [compared.groups[number] for number in order]
        found = replace(found, rows=[found.rows[number] for number in order])
        head = sentence_on(found, groups, range(len(groups) - len(unfit), len(groups)))
        return compared._replace(groups=groups, slowdowns=[found], heads=[head])

    @property
    def _baseline(self) -> Outcome:
        return next(each for each in self.outcomes if each.contender.method == self.baseline)

    def _slowdown(self, shown: Sequence[Outcome], groups: Sequence[SweepGroup]) -> Slowdown | None:
        """Steps and time to the target, over the baseline's; None until a run can say what the target is."""
        completed = [number for number, group in enumerate(groups) if group.completed]
        own = [number for number in completed if shown[number] is self._baseline]
        usable = own or (completed if self.target else [])  # a given target needs no baseline
        return slowdown_to(groups, usable[0], *(self.target or (TRAIN_LOSS, None))) if usable else None

    @property
    def _without_target(self) -> str:
        """Why there is no target yet."""
        name = self._baseline.contender.name
        if not any(run.status == "completed" for _, run in self._baseline.reported):
            return f"No run of {name}, the baseline, has completed."
        lost = f"its training loss is not recorded, or has not fallen after {SHARE:.0%} of its steps"
        why = f"it has no values of {self.target[0]}" if self.target else lost
        return f"{name} sets no target: {why}; another --target or --baseline sets one."

    @property
    def missing(self) -> list[str]:
        """Lines on missing and failed runs."""
        lines = []
        for outcome in self.outcomes:
            name, runs = outcome.contender.name, len(outcome.reported)
            if outcome.tuning.missing:
                lines.append(f"{name}: tuning is not finished: {outcome.tuning.progress}")
            elif outcome.tuning.best is None:
                lines.append(f"{name}: every setting that was tried diverged or failed")
            elif runs < self.seeds:
                lines.append(f"{name}: {self.seeds - runs} of {self.seeds} seeds have not run")
        return lines

    @property
    def notes(self) -> list[str]:
        """Notes on memory and predictions, and on what is missing."""
        unfit = [each.contender.name for each in self.outcomes if not each.contender.costs.fits]
        costs = dict.fromkeys(note for each in self.outcomes for note in each.contender.costs.notes)
        return [
            *(f"{name}: does not fit into the memory of its devices, so it is ranked last" for name in unfit),
            *(f"prediction: {note}" for note in costs),
            *(f"missing: {line}" for line in self.missing),
            *([f"the same command with -o {self.folder} goes on"] if any(map(self._goes_on, self.outcomes)) else []),
        ]

    def _goes_on(self, outcome: Outcome) -> bool:
        """True if the same command would start runs of a configuration, apart from those that failed."""
        tuning = outcome.tuning
        return bool(tuning.missing) or (tuning.best is not None and len(outcome.reported) < self.seeds)

    def write(self) -> None:
        """Writes the report, the list of runs, and what is missing."""
        sweep_files.write(self.report, self.folder / "comparison", self.folder.resolve().name)
        rows = [_row(*each) for outcome in self.outcomes for each in (*outcome.trials, *outcome.reported)]
        write_whole(self.folder / "runs.csv", csv_table(rows))
        write_whole(self.folder / "state.json", strict_json.dumps({"missing": self.missing}, indent=1) + "\n")


def _row(planned: PlannedRun, run: ComparedRun) -> dict[str, Any]:
    return {
        "configuration": planned.contender.name,
        "purpose": "tuning" if planned.tunes else "reported",
        "tuned": " ".join(planned.candidate),
        "seed": planned.seed,
        "status": run.status,
        "reason": run.reason,
        "wall_s": run.numbers.get("wall_s"),
        "folder": run.path.name,
        **{f"final_{name}": value for name, value in run.final.items()},
    }
