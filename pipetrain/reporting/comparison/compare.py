"""The work of `pipetrain compare`: tunes every configuration, then runs its seeds, and reports them."""

import math
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from tqdm import tqdm

from pipetrain.engine.errors import ConfigError
from pipetrain.engine.processes import usable_cores
from pipetrain.reporting.comparison.contenders import METRIC, Contender, contenders_of
from pipetrain.reporting.comparison.progress import Progress, outlook
from pipetrain.reporting.comparison.results import Comparison, Outcome
from pipetrain.reporting.comparison.runs import FAILED, PlannedRun, Runs
from pipetrain.reporting.comparison.tuning import Candidate, Search, search
from pipetrain.reporting.sweep.compared_run import TRAIN_LOSS, ComparedRun
from pipetrain.runner.api.surroundings import kept
from pipetrain.runner.terminal.text_table import counted, printable
from pipetrain.runner.tracking.files import new_folder
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
        minutes: after which runs are stopped; none is started that would end later, as far as is known; None: no limit.
        jobs: number of runs at a time; None: the number of cores divided by the threads of a run.
        began_s: moment, by `time.monotonic`, from which the minutes count.
    """

    target: tuple[str, float] | None = None
    baseline: str | None = None
    tune: Sequence[str] = ()
    seeds: int = 5
    tuning_seeds: int = 2
    minutes: float | None = None
    jobs: int | None = None
    began_s: float = field(default_factory=time.monotonic)

    def jobs_for(self, contenders: Sequence[Contender]) -> int:
        """Number of runs at a time."""
        return self.jobs or max(1, usable_cores() // max(each.cores for each in contenders))


def compare(
    words: Sequence[str], request: Request | None = None, output: Path | None = None, config_dir: Path | None = None
) -> Comparison:
    """Compares the combinations of settings, and writes tables, figure and page.

    Args:
        words: settings of runs, some with several values, such as `method=gpipe,pipedream partition.stages=2,4`.
        request: what is asked; None: the defaults.
        output: folder of the runs and results; finished runs that it has are not run again. By default a new folder.
        config_dir: folder of choices of the user's own.

    Raises:
        ConfigError: a run cannot work, or the baseline is not compared; nothing was run or written.
        DataError: the data set's own code failed.
        KeyboardInterrupt: a signal; the results up to then are written.
    """
    request = request or Request()
    with kept():
        contenders = _contenders(words, request, config_dir)
    end_s = math.inf if request.minutes is None else request.began_s + 60 * request.minutes
    folder = new_folder(Path("comparison")) if output is None else output
    with locked(folder), closing(Progress()) as progress:
        work = _Work(contenders, Runs(folder / "runs", request.jobs_for(contenders), end_s), request, progress)
        try:
            work.carry_out()
        except KeyboardInterrupt:
            tqdm.write(f"the runs that have ended are in {folder}; the same command with -o {folder} goes on")
            raise
        finally:
            baseline = request.baseline or contenders[0].method
            found = Comparison(folder, work.outcomes(), baseline, request.target, request.seeds)
            found.write()
    return found


def _contenders(words: Sequence[str], request: Request, config_dir: Path | None) -> list[Contender]:
    """`contenders_of` the words and the target's metric; an error about that metric names `--target`."""
    metric, value = request.target or (TRAIN_LOSS, 0.0)
    chosen = words if metric == TRAIN_LOSS else [*words, f"{METRIC}={metric}"]

    def begun(first: Contender, count: int) -> None:
        lines = outlook(
            first, count, seeds=request.seeds, tuning_seeds=request.tuning_seeds, jobs=request.jobs_for([first]),
            minutes=request.minutes,
        )  # fmt: skip
        tqdm.write("\n".join(lines), file=sys.stderr)

    try:
        return contenders_of(chosen, request.tune, config_dir, request.baseline, begun)
    except ConfigError as error:
        said = str(error).replace(f"{METRIC}={metric}: ", f"--target {metric}={value:g}: ")
        raise ConfigError(said) from error


@dataclass
class _Work:
    """The runs of a comparison that is going on."""

    contenders: Sequence[Contender]
    runs: Runs
    request: Request
    progress: Progress = field(default_factory=Progress)

    def carry_out(self) -> None:
        """Tunes all contenders, then runs one seed of each after the other, as far as the time allows."""
        while trials := [run for each in self.contenders for run in self._trials(each, self._search(each).missing)]:
            if not self._carried_out("tuning", trials):
                return
        reported = [run for each in self.contenders for run in self._reported(each, self._search(each))]
        self._carried_out("seeds", sorted(reported, key=lambda run: run.seed))

    def _carried_out(self, what: str, planned: Sequence[PlannedRun]) -> bool:
        """Carries out those runs that have not ended; returns False if the time was over before."""
        missing = [each for each in planned if self.runs.result(each) is None]
        if not missing:
            return True
        done = self.runs.carry_out(missing, self._show)
        tqdm.write("\n".join(_ends(what, [run for _, run in self._ended(missing)])))
        return done

    def _show(self) -> None:
        """Shows how many runs have ended, of those that are known to be needed, and the time that the others take."""
        ended, coming = 0, list[Contender]()
        for each in self.contenders:
            tuning = self._search(each)
            planned = self._trials(each, [*tuning.losses, *tuning.missing]) + self._reported(each, tuning)
            count = len(self._ended(planned))
            later = self.request.seeds if tuning.missing else 0
            ended, coming = ended + count, coming + [each] * (len(planned) - count + later)
        if newest := self.runs.newest:
            what = f"{'tuning' if newest.tunes else 'running'} {newest.contender.name}"
            words = " ".join([*newest.candidate, f"seed={newest.seed}"])
            self.progress.show(ended, ended + len(coming), f"{what} {words}", self.runs.left_s(coming))

    def _search(self, contender: Contender) -> Search:
        def loss_of(candidate: Candidate) -> float | None:
            losses = [contender.loss_of(run) for _, run in self._ended(self._trials(contender, [candidate]))]
            return sum(losses) / len(losses) if len(losses) == self.request.tuning_seeds else None

        return search(contender.grid, loss_of)

    def _trials(self, contender: Contender, candidates: Iterable[Candidate]) -> list[PlannedRun]:
        first = max(_FIRST_TUNING_SEED, self.request.seeds)  # none is reported
        seeds = range(first, first + self.request.tuning_seeds)
        return [PlannedRun(contender, each, seed, tunes=True) for each in candidates for seed in seeds]

    def _reported(self, contender: Contender, tuning: Search) -> list[PlannedRun]:
        seeds = range(0 if tuning.best is None else self.request.seeds)
        return [PlannedRun(contender, tuning.best or (), seed) for seed in seeds]

    def _ended(self, every: Iterable[PlannedRun]) -> list[tuple[PlannedRun, ComparedRun]]:
        return [(each, run) for each in every if (run := self.runs.result(each)) is not None]

    def outcomes(self) -> list[Outcome]:
        """What has become of each contender so far."""
        found = []
        for each in self.contenders:
            tuning = self._search(each)
            trials, reported = self._trials(each, tuning.losses), self._reported(each, tuning)
            found.append(Outcome(each, tuning, self._ended(trials), self._ended(reported)))
        return found


def _ends(what: str, runs: Sequence[ComparedRun]) -> Iterator[str]:
    """Lines on how runs have ended, if some did not complete, and on why any failed."""
    lost = Counter(run.status for run in runs if run.status != "completed")
    yield ", ".join([_counted(what, runs), *(f"{count} {status}" for status, count in lost.items())])
    yield from (printable(f"{run.path.name}: {run.reason}") for run in runs if run.status == FAILED)


def _counted(what: str, runs: Sequence[object]) -> str:
    return f"{what}: {counted(len(runs), 'run', 'runs')}"
