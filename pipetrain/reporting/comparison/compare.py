"""The work of `pipetrain compare`: tunes every configuration, then runs its seeds, and reports after each round."""

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tqdm import tqdm

from pipetrain.engine.errors import ConfigError
from pipetrain.engine.processes import usable_cores
from pipetrain.reporting.comparison.contenders import (
    METRIC,
    Contender,
    check_baseline,
    contenders_of,
)
from pipetrain.reporting.comparison.halving import Search, Trial, search
from pipetrain.reporting.comparison.results import Comparison, Outcome, stored_cuts
from pipetrain.reporting.comparison.runs import FAILED, PlannedRun, Runs
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
        baseline: the method that slowdowns are relative to; None: the first one.
        tune: settings to tune and their values, such as `optimizer.lr=0.01,0.03`; the learning rate always is.
        seeds: number of reported seeds, from 0 on.
        tuning_seeds: number of seeds of each trial, from 1000 on.
        minutes: no run is started that would end later, as far as is known; None: no limit.
        jobs: number of runs at a time; None: the number of cores divided by the threads of a run.
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
        output: folder of the runs and results; finished runs that it has are not run again. By default a new folder.
        config_dir: folder of choices of the user's own.

    Raises:
        ConfigError: a run cannot work, or the baseline is not compared; nothing was run or written.
        DataError: the data set's own code failed.
        KeyboardInterrupt: a signal; the results up to then are written.
    """
    began = time.monotonic()
    cuts = {} if output is None else stored_cuts(output)
    with kept():
        contenders, left_out = _contenders(words, request, config_dir, cuts)
        baseline = request.baseline or contenders[0].method
        check_baseline(baseline, [each.method for each in contenders], left_out)
        jobs = request.jobs or max(1, usable_cores() // max(each.cores for each in contenders))
    end_s = math.inf if request.minutes is None else began + 60 * request.minutes
    folder = new_folder(Path("comparison")) if output is None else output
    with locked(folder):
        work = _Work(contenders, Runs(folder / "runs", jobs, end_s), request, baseline, left_out)
        try:
            work.carry_out(folder)
        except KeyboardInterrupt:
            tqdm.write(f"the runs that have ended are in {folder}; the same command with -o {folder} goes on")
            raise
        finally:
            found = work.comparison(folder)
            found.write()
    return found


def _contenders(
    words: Sequence[str], request: Request, config_dir: Path | None, cuts: Mapping[str, Sequence[str]]
) -> tuple[list[Contender], list[str]]:
    """`contenders_of` the words and the target's metric; an error about that metric names `--target`."""
    asked = request.tune, request.tuning_seeds, config_dir, cuts, request.baseline
    if request.target is None or request.target[0] == TRAIN_LOSS:
        return contenders_of(words, *asked)
    metric, value = request.target
    setting = f"{METRIC}={metric}"
    try:
        return contenders_of([*words, setting], *asked)
    except ConfigError as error:
        if not str(error).startswith(f"{setting}: "):
            raise
        raise ConfigError(f"--target {metric}={value:g}{str(error).removeprefix(setting)}") from error


@dataclass
class _Work:
    """The runs of a comparison that is going on.

    Attributes:
        baseline: its method.
        left_out: lines on configurations that were asked for and cannot run.
    """

    contenders: Sequence[Contender]
    runs: Runs
    request: Request
    baseline: str
    left_out: Sequence[str] = ()

    def carry_out(self, output: Path) -> None:
        """Tunes, then runs one seed of every contender after the other, and writes the results after each."""
        while trials := self._next_trials():
            if not self._round("tuning", trials):
                return
        for seed in range(self.request.seeds):
            before = self.runs.started
            runs = [run for each in self.contenders for run in self._reported(each, [seed])]
            if not self._round(f"seed {seed}", runs):
                return
            if self.runs.started > before and seed + 1 < self.request.seeds:
                (found := self.comparison(output)).write()
                tqdm.write(printable(" ".join(found.report.heads)))

    def _next_trials(self) -> list[PlannedRun]:
        """Runs that tuning needs next, the shortest first."""
        runs = (run for each in self.contenders for run in self._of_trials(each, self.search(each).trials))
        return sorted(runs, key=lambda each: each.steps)

    def _round(self, what: str, planned: Sequence[PlannedRun]) -> bool:
        """Carries out runs; returns False if the time was over before."""
        missing = [each for each in planned if self.runs.result(each) is None]
        if not missing:
            return True
        with counting(f"{what}, {counted(len(missing), 'run', 'runs')}", sum(each.steps for each in missing)) as bar:
            done = self.runs.carry_out(missing, lambda run: bar.update(run.steps))
        statuses = [result.status for each in missing if (result := self.runs.result(each))]
        lost = [f"{n} {status}" for status in ("diverged", FAILED) if (n := statuses.count(status))]
        tqdm.write(", ".join([f"{what}: {counted(len(statuses), 'run', 'runs')}", *lost]))
        return done

    def search(self, contender: Contender) -> Search:
        """The state of a contender's tuning."""

        def loss_of(trial: Trial) -> float | None:
            losses = [contender.loss_of(run) for _, run in self._ended(self._of_trials(contender, [trial]))]
            return sum(losses) / len(losses) if len(losses) == contender.tuning_seeds else None

        return search(contender.axes, contender.rungs, loss_of)

    def _of_trials(self, contender: Contender, trials: Iterable[Trial]) -> list[PlannedRun]:
        first = max(_FIRST_TUNING_SEED, self.request.seeds)  # none is reported
        seeds = range(first, first + contender.tuning_seeds)
        return [PlannedRun(contender, *each, seed=seed, tunes=True) for each in trials for seed in seeds]

    def _reported(self, contender: Contender, seeds: Iterable[int]) -> list[PlannedRun]:
        best = self.search(contender).best
        return [] if best is None else [PlannedRun(contender, best, contender.steps, seed) for seed in seeds]

    def _ended(self, every: Iterable[PlannedRun]) -> list[tuple[PlannedRun, ComparedRun]]:
        return [(each, run) for each in every if (run := self.runs.result(each)) is not None]

    def comparison(self, folder: Path) -> Comparison:
        """The results so far."""
        outcomes = []
        for each in self.contenders:
            tuning, reported = self.search(each), self._reported(each, range(self.request.seeds))
            trials = self._ended(self._of_trials(each, tuning.losses))
            outcomes.append(Outcome(each, tuning, trials, self._ended(reported)))
        return Comparison(folder, outcomes, self.baseline, self.request.target, self.request.seeds, self.left_out)
