"""The results of a comparison: steps and predicted time to a target over seeds, slowdowns, and which contender wins."""

import math
import statistics
from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from pipetrain.engine.errors import ConfigError
from pipetrain.reporting.comparison.contenders import Contender
from pipetrain.reporting.comparison.halving import Search
from pipetrain.reporting.comparison.runs import PlannedRun
from pipetrain.reporting.seed_statistics import Interval, Values, difference, ratio, verdict
from pipetrain.reporting.steps_to_loss import SHARE
from pipetrain.reporting.sweep.compared_run import TRAIN_LOSS, ComparedRun, is_seed
from pipetrain.reporting.sweep.groups import SweepGroup
from pipetrain.reporting.sweep.slowdown import STEPS, Slowdown, ratio_cell, slowdowns
from pipetrain.runner.terminal.text_table import counted

_MORE_THAN_1 = math.nextafter(1.0, 2.0)


@dataclass(frozen=True)
class Outcome:
    """What became of a contender.

    Attributes:
        tuning: the state of its search.
        trials: the runs that tuned it and have ended.
        reported: those of the reported seeds.
    """

    contender: Contender
    tuning: Search
    trials: Sequence[tuple[PlannedRun, ComparedRun]]
    reported: Sequence[tuple[PlannedRun, ComparedRun]]

    @property
    def group(self) -> SweepGroup:
        """The reported runs, by the seeds of the comparison alone: a method's own seed may be fixed."""
        runs = []
        for planned, run in self.reported:
            others = {name: value for name, value in run.settings.items() if not is_seed(name)}
            runs.append(replace(run, settings={**others, "seed": planned.seed}))
        return SweepGroup(self.contender.name, runs)

    def finals(self, metric: str) -> dict[Hashable, float]:
        """The final values of a metric by seed, of the runs that completed."""
        values = {run.seeds: run.values.get(metric, math.nan) for run in self.group.completed}
        return {seed: value for seed, value in values.items() if math.isfinite(value)}

    @property
    def without_effect(self) -> bool:
        """True if what is tuned changes nothing: not even the training losses of trials of one seed and length.

        The metric alone may also be the same because no candidate has learned anything yet.
        """
        by_trial: dict[tuple[int, int], set[tuple[float, ...]]] = {}
        for planned, run in self.trials:
            by_trial.setdefault((planned.seed, planned.steps), set()).add(tuple(run.losses.losses))
        return self.tuning.without_effect and all(len(losses) == 1 and any(losses) for losses in by_trial.values())


@dataclass(frozen=True)
class Comparison:
    """The contenders and what became of them.

    Attributes:
        folder: of its runs and files.
        baseline: the method that others are compared with, in its first configuration.
        target: metric and value that were asked for, if any.
        seeds: number of seeds that were asked for.
        left_out: lines on configurations that were asked for and cannot run.
    """

    folder: Path
    outcomes: Sequence[Outcome]
    baseline: str
    target: tuple[str, float] | None
    seeds: int
    left_out: Sequence[str] = ()

    @property
    def metric(self) -> str:
        """The metric of evaluations that is shown, and by which settings were chosen."""
        return self.outcomes[0].contender.metric

    @property
    def baseline_outcome(self) -> Outcome:
        """The configuration that others are compared with."""
        return next(each for each in self.outcomes if each.contender.method == self.baseline)

    @cached_property
    def slowdown(self) -> Slowdown | None:
        """Steps to the target, and their ratios to the baseline's; None until a run can say what the target is."""
        groups = [each.group for each in self.outcomes]
        completed = [number for number, group in enumerate(groups) if group.completed]
        first = self.outcomes.index(self.baseline_outcome)
        own = [first] if first in completed else []
        if not (own or (self.target and completed)):
            return None
        name, asked = (self.target[0], dict([self.target])) if self.target else (TRAIN_LOSS, {})
        try:
            found = slowdowns(groups, (own or completed)[0], asked)
        except ConfigError:  # no loss has fallen
            return None
        return next((each for each in found if each.name == name), None)

    @property
    def goal(self) -> str:
        """The target in words."""
        return "the target" if self.slowdown is None else self.slowdown.goal

    def steps(self, outcome: Outcome) -> Values:
        """Steps to the target by seed; infinite where a run did not reach it."""
        row = self.slowdown.rows[self.outcomes.index(outcome)] if self.slowdown else None
        return row.amounts[STEPS] if row else {}

    def seconds(self, outcome: Outcome) -> Values:
        """The predicted time of these steps; empty if the pipeline cannot be predicted."""
        predicted = {seed: outcome.contender.costs.seconds(steps) for seed, steps in self.steps(outcome).items()}
        return {seed: seconds for seed, seconds in predicted.items() if seconds is not None}

    def over_baseline(self, outcome: Outcome) -> Interval | None:
        """The ratio of steps to the baseline's; None of the baseline itself, or if it has no completed run."""
        found, own = self.slowdown, self.baseline_outcome
        if found is None or own is outcome or own.contender.name != found.baseline:
            return None
        row = found.rows[self.outcomes.index(outcome)]
        return row.over_baseline.get(STEPS) if row else None

    def at_first(self, outcome: Outcome) -> Collection[Any]:
        """The seeds that had reached the target at their first value."""
        row = self.slowdown.rows[self.outcomes.index(outcome)] if self.slowdown else None
        return row.at_first if row else ()

    @property
    def timed(self) -> bool:
        """True if the time of every pipeline is predicted."""
        return all(each.contender.costs.step_s for each in self.outcomes)

    def efforts(self, outcome: Outcome) -> Values:
        """By seed, the time to the target, or the steps if the time of some pipeline is not predicted."""
        return self.seconds(outcome) if self.timed else self.steps(outcome)

    @cached_property
    def comparable(self) -> Sequence[Outcome]:
        """The configurations with results for one seed, that of which most have some; those that fit count first."""
        by_seed: dict[Any, list[Outcome]] = {}
        for outcome in self.outcomes:
            for seed in self.efforts(outcome):
                by_seed.setdefault(seed, []).append(outcome)

        def counts(having: Sequence[Outcome]) -> tuple[int, int]:
            return sum(each.contender.costs.fits for each in having), len(having)

        return max(by_seed.values(), key=counts, default=[])

    @property
    def unranked(self) -> list[Outcome]:
        """The configurations with results that are not comparable with the others."""
        return [each for each in self.outcomes if self.efforts(each) and each not in self.comparable]

    @cached_property
    def common_seeds(self) -> set[Any]:
        """The seeds that all comparable configurations have; empty if there are none."""
        every = [set(self.efforts(outcome)) for outcome in self.comparable]
        return set.intersection(*every) if every else set()

    def _over_common(self, outcome: Outcome) -> Values:
        """Efforts over the seeds that all have: a seed that only some have run may be a harder one."""
        return {seed: value for seed, value in self.efforts(outcome).items() if seed in self.common_seeds}

    def _over_shared(self, one: Outcome, other: Outcome) -> tuple[Values, Values]:
        """Efforts of two configurations over the seeds that both have."""
        ours, theirs = self.efforts(one), self.efforts(other)
        shared = sorted(ours.keys() & theirs.keys(), key=str)
        return {seed: ours[seed] for seed in shared}, {seed: theirs[seed] for seed in shared}

    def _are_equal(self, one: Outcome, other: Outcome) -> bool:
        """True if they have reached the target in the same way, as methods do that are one at some depth."""
        ours, theirs = self._over_shared(one, other)
        return ours == theirs and any(map(math.isfinite, ours.values()))

    @cached_property
    def ranked(self) -> list[Outcome]:
        """The fastest first; configurations that reach the target with more of their seeds precede the others.

        All that are comparable are ranked over the seeds that they have in common. As those may be few, the first is
        then compared with each other one over all seeds that both have, and gives way to one that is faster over these.
        The others follow; configurations that do not fit into the memory of their devices come last.
        """

        def place(outcome: Outcome) -> tuple[bool, bool, tuple[float, float]]:
            fits = outcome.contender.costs.fits
            return not fits, outcome not in self.comparable, _rank(self._over_common(outcome))

        found = sorted(self.outcomes, key=place)
        for _ in self.outcomes:  # three that beat each other in turn have no end
            faster = next((each for each in found[1:] if self._is_faster(each, found[0])), None)
            if faster is None:
                break
            found.remove(faster)
            found.insert(0, faster)
        return found

    def _is_faster(self, one: Outcome, other: Outcome) -> bool:
        """True if it fits, is comparable, and is faster over the seeds that both have."""
        ours, theirs = self._over_shared(one, other)
        return one.contender.costs.fits and one in self.comparable and _rank(ours) < _rank(theirs)

    @cached_property
    def head(self) -> str:
        """One sentence: the fastest contender, its margin over the next, and whether the runs support it."""
        if self.slowdown is None:
            return self._without_target
        ranked = [each for each in self.ranked if each.contender.costs.fits]
        if not ranked:
            return "No configuration fits into the memory of its devices."
        fitting = [each for each in self.comparable if each.contender.costs.fits]
        if not self.comparable or (self.unranked and len(fitting) == 1):
            return "No seed has run with two configurations, so they cannot be ranked yet."
        ranked = [each for each in ranked if each not in self.unranked]
        best = [each for each in ranked if each is ranked[0] or self._are_equal(ranked[0], each)]
        rest = [each for each in ranked if each not in best]
        efforts, theirs = self._over_shared(best[0], rest[0]) if rest else (self.efforts(best[0]), {})
        efforts = efforts or self.efforts(best[0])
        known = [value for value in efforts.values() if math.isfinite(value)]
        if not known:
            return f"No {self._configuration} has reached {self.goal}{self._but_alone(ranked)}.{self._left_unranked}"
        mean = statistics.geometric_mean(known)
        amount = f"{duration(mean)}, predicted," if self.timed else f"{mean:,.0f} steps"
        names = " and ".join(each.contender.name for each in best)
        first = f"{names} {'is' if len(best) == 1 else 'are'} the fastest: {amount} to {self.goal}{_of_all(efforts)}"
        margin = f"; {self._over_next(rest, efforts, theirs)}" if rest else ""
        return f"{first}{margin}.{self._left_unranked}"

    @property
    def _configuration(self) -> str:
        return "ranked configuration" if self.unranked else "configuration"

    @property
    def _left_unranked(self) -> str:
        """A sentence on the configurations that are not comparable; empty if there are none."""
        names = ", ".join(each.contender.name for each in self.unranked)
        return f" Not ranked, because no seed has results for all of them: {names}." if names else ""

    def _but_alone(self, ranked: Sequence[Outcome]) -> str:
        """The configurations that reached the target with seeds that others have not run; empty if there are none."""
        alone = [each.contender.name for each in ranked if any(map(math.isfinite, self.efforts(each).values()))]
        return f" with a seed that the others have run, too; {', '.join(alone)} did with another one" if alone else ""

    def _over_next(self, rest: Sequence[Outcome], efforts: Values, theirs: Values) -> str:
        """How much longer the first of the rest takes, and whether the runs support that none is faster."""
        if not theirs:
            return "the others have no result"
        margin = ratio(theirs, efforts)
        if margin.infinite[0] == margin.seeds:
            return f"no other {self._configuration} has reached it"
        # even a margin of less than a percent can hold
        digits = 4 if f"{margin.middle:.2f}" == "1.00" else 2
        longer = f"takes {ratio_cell(margin, digits)} times as long"
        if margin.infinite[0]:
            longer = f"has reached it{_of_all(theirs)}"
        support = _support(margin)
        if bounds := [each.contender.name for each in rest if efforts.keys() & set(self.at_first(each))]:
            whose = ", ".join(bounds)
            support = f"undecided, as {whose} had reached it at the first value, so the steps are an upper bound"
        return f"{rest[0].contender.name} {longer}: {support}"

    @property
    def _without_target(self) -> str:
        """Why there is no target yet."""
        own, name = self.baseline_outcome, self.baseline_outcome.contender.name
        if own.group.completed and not any(run.losses.steps for run in own.group.completed):
            return f"{name} has recorded no training loss; log.every_steps says when runs do."
        if own.group.completed and self.target is None:
            return (
                f"The training loss of {name} has not fallen after {SHARE:.0%} of its steps, so it sets no "
                "target; --target or another --baseline does."
            )
        return f"No run of {name}, which the others are compared with, has completed."

    @property
    def missing(self) -> list[str]:
        """Lines on what has not run, or came to nothing."""
        lines = list(self.left_out)
        for outcome in self.outcomes:
            name, runs = outcome.contender.name, len(outcome.reported)
            if not outcome.tuning.ended:
                lines.append(f"{name}: tuning is not finished")
            elif outcome.tuning.best is None:
                lines.append(f"{name}: every setting that was tried diverged or failed")
            elif runs < self.seeds:
                lines.append(f"{name}: {self.seeds - runs} of {self.seeds} seeds have not run")
        return lines

    @property
    def lost(self) -> list[str]:
        """A line for each reported run that diverged or failed, and for each contender on those that tuned it."""
        lines = []
        for outcome in self.outcomes:
            name = outcome.contender.name
            for status in ("diverged", "failed"):
                found = [(each, run) for each, run in outcome.trials if run.status == status]
                if found:
                    of_all = f"{len(found)} of {len(outcome.trials)} trials {status}"
                    settings = dict.fromkeys(" ".join(each.candidate) for each, _ in found)
                    why = f": {found[0][1].reason}" if status == "failed" else ""
                    lines.append(f"{name}: {of_all}, with {', '.join(settings)}{why}")
            for planned, run in outcome.reported:
                if run.status != "completed":
                    lines.append(f"{name}, seed {planned.seed}: {run.reason or run.status}")
        return lines


def _rank(efforts: Values) -> tuple[float, float]:
    """Less is better: the share of seeds that reached the target counts first."""
    known = [value for value in efforts.values() if math.isfinite(value)]
    return (-len(known) / len(efforts), statistics.geometric_mean(known)) if known else (0.0, math.inf)


def _of_all(efforts: Values) -> str:
    """With how many seeds the goal was reached, if not with all."""
    reached = sum(map(math.isfinite, efforts.values()))
    return "" if reached == len(efforts) else f" with {reached} of {len(efforts)} seeds"


def _support(margin: Interval) -> str:
    """Whether the runs support that the second takes longer."""
    judged, seeds = verdict(margin, low=_MORE_THAN_1), counted(margin.seeds, "seed", "seeds")
    if judged.holds:
        return f"the ranking holds over {seeds}"
    more = f", about {judged.seeds - margin.seeds:,} more would decide at even odds" if judged.seeds else ""
    return f"undecided after {seeds}{more}"


def mean_of(values: Values) -> Interval | None:
    """The mean with its interval; None of no values."""
    return difference(values, dict.fromkeys(values, 0.0)) if values else None


def geometric_mean_of(values: Values) -> Interval | None:
    """The same of values above 0, as that of ratios is; infinite if one is infinite."""
    return ratio(values, dict.fromkeys(values, 1.0)) if values else None


def shown(mean: Interval | None, text: Callable[[float], str]) -> str:
    """A mean with its interval if it has one; if some values are infinite, how many are not."""
    if mean is None:
        return "-"
    if mean.infinite[0]:
        return f"reached by {mean.seeds - mean.infinite[0]} of {mean.seeds}"
    return text(mean.middle) + (f" ({text(mean.low)} to {text(mean.high)})" if mean.seeds > 1 else "")


def duration(seconds: float) -> str:
    """A time as text."""
    if seconds < 100:
        return f"{seconds:.3g} s"
    return f"{seconds / 60:.1f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
