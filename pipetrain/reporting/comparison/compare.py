"""`pipetrain compare`: tunes every contender, runs the seeds round by round, and writes what is known so far."""

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Never

from tqdm import tqdm

from pipetrain.engine.errors import ConfigError
from pipetrain.engine.libraries.processes import usable_cores
from pipetrain.reporting.comparison.contenders import (
    METRIC,
    Contender,
    contenders_of,
    cut_key,
    distinguished,
    methods_of,
    not_replaced,
)
from pipetrain.reporting.comparison.halving import Search, Trial, search
from pipetrain.reporting.comparison.outcomes import Comparison, Outcome
from pipetrain.reporting.comparison.page import stored, write
from pipetrain.reporting.comparison.runs import PlannedRun, Runs
from pipetrain.reporting.sweep.compared_run import TRAIN_LOSS, ComparedRun
from pipetrain.runner.api.surroundings import kept
from pipetrain.runner.terminal.text_table import counted, printable
from pipetrain.runner.tracking.files import new_folder
from pipetrain.runner.tracking.progress import counting
from pipetrain.runner.tracking.run_lock import locked

_FIRST_TUNING_SEED = 1000


@dataclass(frozen=True)
class Request:
    """What is asked of a comparison.

    Attributes:
        target: the metric, or `train_loss`, and its value whose steps are compared; None: the training loss that the
            baseline has after 70 % of its steps.
        baseline: the method that the others are compared with; None: the first one.
        tune: settings to tune and their values, such as `optimizer.lr=0.01,0.03`; the learning rate always is.
        seeds: number of reported seeds, from 0 on.
        tuning_seeds: number of seeds of each trial, from 1000 on.
        minutes: no run is started that would end later, as far as is known; None: no limit.
        jobs: runs at a time; None: as many as the cores allow.
    """

    target: tuple[str, float] | None = None
    baseline: str | None = None
    tune: Sequence[str] = ()
    seeds: int = 5
    tuning_seeds: int = 2
    minutes: float | None = None
    jobs: int | None = None


def compare(
    words: Sequence[str], request: Request = Request(), output: Path | None = None, config_dir: Path | None = None
) -> Comparison:
    """Compares the combinations of settings, and writes tables, figure and page.

    Args:
        words: settings of runs, some with several values, such as `method=gpipe,pipedream partition.stages=2,4`.
        request: what is asked.
        output: folder of the runs and results; finished runs that it has are not run again, and configurations that
            it has from earlier calls are compared, too. By default a new folder.
        config_dir: folder of choices of the user's own.

    Raises:
        ConfigError: a run cannot work, or the baseline is not compared; nothing was run or written.
        DataError: the data set's own code failed.
        KeyboardInterrupt: a signal; the results up to then are written.
    """
    began = time.monotonic()
    earlier, failed = ([], {}) if output is None else stored(output)
    with kept():
        if request.baseline is not None:
            known = (each.method for each in earlier)
            _check_baseline(request.baseline, [*known, *methods_of(words, config_dir)])
        cuts = {cut_key(each.words): each.cut for each in earlier}
        named, left_out = _contenders(words, request, config_dir, cuts)
        every = distinguished([*named, *not_replaced(earlier, named)])
        baseline = request.baseline or named[0].method
        _check_baseline(baseline, [each.method for each in every], left_out)
        jobs = request.jobs or max(1, usable_cores() // max(each.cores for each in named))
    end_s = math.inf if request.minutes is None else began + 60 * request.minutes
    folder = new_folder(Path("comparison")) if output is None else output
    with locked(folder):
        runs = Runs(folder / "runs", jobs, end_s)
        work = _Work(every, every[: len(named)], runs, request, baseline, failed, left_out)
        try:
            work.carry_out(folder)
        except KeyboardInterrupt:
            tqdm.write(f"the runs that have ended are in {folder}; the same command with -o {folder} goes on")
            raise
        finally:
            found = work.comparison(folder)
            write(found)
    return found


def _check_baseline(baseline: str, methods: Sequence[str], left_out: Sequence[str] = ()) -> None:
    if baseline not in methods:
        why = "".join(f"; {line}" for line in left_out)
        choices = ", ".join(dict.fromkeys(methods))
        raise ConfigError(f"--baseline {baseline}: is not compared; choose from {choices}{why}")


def _contenders(
    words: Sequence[str], request: Request, config_dir: Path | None, cuts: Mapping[frozenset[str], tuple[str, ...]]
) -> tuple[list[Contender], list[str]]:
    """`contenders_of` the words and the target's metric; an error about that metric names `--target`."""
    if request.target is None or request.target[0] == TRAIN_LOSS:
        return contenders_of(words, request.tune, request.tuning_seeds, config_dir, cuts)
    metric, value = request.target
    setting = f"{METRIC}={metric}"
    try:
        return contenders_of([*words, setting], request.tune, request.tuning_seeds, config_dir, cuts)
    except ConfigError as error:
        if not str(error).startswith(f"{setting}: "):
            raise
        raise ConfigError(f"--target {metric}={value:g}{str(error).removeprefix(setting)}") from error


@dataclass
class _Work:
    """The runs of a comparison that is going on, of which only the `named` contenders are run.

    `failed` are runs of earlier calls by their names; those of the other contenders remain failed. `left_out` are lines
    on configurations that are none of the contenders.
    """

    contenders: Sequence[Contender]
    named: Sequence[Contender]
    runs: Runs
    request: Request
    baseline: str
    failed: Mapping[str, ComparedRun] = field(default_factory=dict)
    left_out: Sequence[str] = ()

    def carry_out(self, output: Path) -> None:
        """Tunes, then runs one seed of every contender after the other, and writes the results after each."""
        with counting("comparing", 0) as bar:
            while trials := [each for contender in self.named for each in self._trials(contender)]:
                if not self._round(bar, "tuning", sorted(trials, key=lambda each: each.steps)):
                    return
            tuned = {contender.name: self.search(contender) for contender in self.named}
            for seed in range(self.request.seeds):
                before = self.runs.started
                runs = [run for each in self.named for run in self._reported(each, tuned[each.name], [seed])]
                if not self._round(bar, f"seed {seed}", runs):
                    return
                if self.runs.started > before and seed + 1 < self.request.seeds:
                    write(found := self.comparison(output))
                    tqdm.write(printable(found.head))

    def _trials(self, contender: Contender) -> list[PlannedRun]:
        return [run for trial in self.search(contender).trials for run in self._of_trial(contender, trial)]

    def _round(self, bar: "tqdm[Never]", what: str, planned: Sequence[PlannedRun]) -> bool:
        """Carries out runs; returns False if the time was over before."""
        missing = [each for each in planned if self.runs.result(each) is None]
        if not missing:
            return True
        bar.set_description(f"{what}, {counted(len(missing), 'run', 'runs')}")
        bar.total = bar.n + self._steps_left()
        bar.refresh()
        done = self.runs.carry_out(missing, lambda run: bar.update(run.steps))
        statuses = [result.status for each in missing if (result := self.runs.result(each))]
        lost = [f"{n} {status}" for status in ("diverged", "failed") if (n := statuses.count(status))]
        tqdm.write(", ".join([f"{what}: {counted(len(statuses), 'run', 'runs')}", *lost]))
        return done

    def _steps_left(self) -> int:
        """Steps of all runs to come; further values of a grid that is extended are not foreseen."""
        left = 0
        for contender in self.named:
            tuning, rungs = self.search(contender), contender.rungs
            if tuning.trials:
                current, rivals = tuning.trials[0][1], len(tuning.rivals)
                left += contender.tuning_seeds * len(tuning.trials) * current
                for number, steps in enumerate((each for each in rungs if each > current), 1):
                    left += contender.tuning_seeds * steps * math.ceil(rivals / 2**number)
            ended = self._ended_of(self._reported(contender, tuning, range(self.request.seeds)))
            left += (self.request.seeds - len(ended)) * contender.steps
        return left

    def search(self, contender: Contender) -> Search:
        """The state of a contender's tuning."""

        def loss_of(trial: Trial) -> float | None:
            runs = self._ended_of(self._of_trial(contender, trial))
            losses = [contender.loss_of(run) for _, run in runs]
            return sum(losses) / len(losses) if len(losses) == contender.tuning_seeds else None

        return search(contender.axes, contender.rungs, loss_of)

    def _of_trial(self, contender: Contender, trial: Trial) -> list[PlannedRun]:
        first = max(_FIRST_TUNING_SEED, self.request.seeds)  # none is reported
        seeds = range(first, first + contender.tuning_seeds)
        return [PlannedRun(contender, trial[0], seed, trial[1], tunes=True) for seed in seeds]

    def _reported(self, contender: Contender, tuning: Search, seeds: Iterable[int]) -> list[PlannedRun]:
        if tuning.best is None:
            return []
        return [PlannedRun(contender, tuning.best, seed, contender.steps, tunes=False) for seed in seeds]

    def _ended_of(self, every: Iterable[PlannedRun]) -> list[tuple[PlannedRun, ComparedRun]]:
        return [(planned, run) for planned in every if (run := self._result(planned)) is not None]

    def _result(self, planned: PlannedRun) -> ComparedRun | None:
        found = self.runs.result(planned)
        return self.failed.get(planned.name) if found is None and planned.contender not in self.named else found

    def comparison(self, folder: Path) -> Comparison:
        """The results so far."""
        outcomes = []
        for contender in self.contenders:
            tuning = self.search(contender)
            trials = [run for trial in tuning.losses for run in self._of_trial(contender, trial)]
            reported = self._reported(contender, tuning, range(self.request.seeds))
            outcomes.append(Outcome(contender, tuning, self._ended_of(trials), self._ended_of(reported)))
        return Comparison(folder, outcomes, self.baseline, self.request.target, self.request.seeds, self.left_out)
