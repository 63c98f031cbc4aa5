"""Which row reaches a target first, in one sentence, and whether the seeds decide it."""

import math
import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence

from pipetrain.reporting.seed_statistics import Interval, Values, ratio, verdict
from pipetrain.reporting.sweep.groups import SweepGroup, labels_of
from pipetrain.reporting.sweep.slowdown import SECONDS, STEPS, Slowdown, ratio_cell
from pipetrain.runner.terminal.text_table import counted

_MORE_THAN_1 = math.nextafter(1.0, 2.0)


def efforts_of(found: Slowdown) -> list[Values]:
    """What each row takes to the target by seed: time, or steps if the time of some row is unknown."""
    amount = SECONDS if _is_timed(found) else STEPS
    return [row.amounts.get(amount, {}) for row in found.rows]


def _is_timed(found: Slowdown) -> bool:
    return all(SECONDS in row.amounts for row in found.rows if row.amounts)


def fastest_first(efforts: Sequence[Values], excluded: Collection[int] = ()) -> list[int]:
    """Numbers of the rows, the fastest first, the `excluded` ones last.

    A row beats another if it is faster over the seeds that both have, of which a harder one may be missing elsewhere.
    The rows that beat most come first. With the same seeds everywhere, that is the order of the geometric means; rows
    that reach the target with more of their seeds come first.
    """

    def key(row: int) -> tuple[bool, bool, int, tuple[float, float]]:
        own = efforts[row]
        met = any(own.keys() & each.keys() for number, each in enumerate(efforts) if number != row)
        beaten = sum(_beats(own, each) for each in efforts)
        return row in excluded, not met, -beaten, _rank(own)

    return sorted(range(len(efforts)), key=key)


def _beats(ours: Values, theirs: Values) -> bool:
    ours, theirs = _shared(ours, theirs)
    return _rank(ours) < _rank(theirs)


def _shared(ours: Values, theirs: Values) -> tuple[Values, Values]:
    """The values of the seeds that both have."""
    seeds = sorted(ours.keys() & theirs.keys(), key=str)
    return {seed: ours[seed] for seed in seeds}, {seed: theirs[seed] for seed in seeds}


def _rank(efforts: Values) -> tuple[float, float]:
    """Less is better: the share of seeds that reached the target counts first."""
    reached = _reached(efforts)
    return (-len(reached) / len(efforts), statistics.geometric_mean(reached)) if reached else (0.0, math.inf)


def _reached(efforts: Values) -> list[float]:
    return [value for value in efforts.values() if math.isfinite(value)]


def sentence_on(found: Slowdown, groups: Sequence[SweepGroup], excluded: Collection[int] = ()) -> str:
    """The fastest row, its margin over a rival, and whether the seeds support it.

    The rival is the first row that could be as fast by its 95 % interval, or else the next one. Rows are numbered as
    the groups; the `excluded` ones, such as those that do not fit into memory, cannot win.
    """
    names, efforts = labels_of(groups), efforts_of(found)
    order = [row for row in fastest_first(efforts, excluded) if efforts[row] and row not in excluded]
    if not any(_reached(efforts[row]) for row in order):
        return f"No row has reached {found.goal}."
    own = efforts[order[0]]
    best = [row for row in order if row == order[0] or _are_equal(own, efforts[row])]
    verb = "is" if len(best) == 1 else "are"
    amount = f"{_amount(found, groups, order[0], own)} to {found.goal}{_some(own)}"
    first = f"{' and '.join(names[row] for row in best)} {verb} the fastest: {amount}"
    rest = {row: _shared(efforts[row], own) for row in order if row not in best}
    margins = {row: ratio(*both) for row, both in rest.items() if both[0]}
    apart = ", ".join(names[row] for row in rest if row not in margins)
    left_out = f" Not compared, because they share no seed with it: {apart}." if apart else ""
    return f"{first}{_over_rival(margins, names, _early(found, margins, own))}.{left_out}"


def _early(found: Slowdown, rows: Iterable[int], own: Values) -> list[int]:
    """The rows that had reached the target at their first value with a seed that the fastest has, too.

    They may be faster than they seem.
    """
    known = ((row, found.rows[row]) for row in rows)
    return [row for row, each in known if own.keys() & set(each.at_first)]


def _are_equal(ours: Values, theirs: Values) -> bool:
    """True if both reached the target in the same way, as two methods do that are one at some depth."""
    ours, theirs = _shared(ours, theirs)
    return ours == theirs and bool(_reached(ours))


def _amount(found: Slowdown, groups: Sequence[SweepGroup], row: int, own: Values) -> str:
    mean = statistics.geometric_mean(_reached(own))
    if not _is_timed(found):
        return f"{mean:,.0f} steps"
    return f"{duration(mean)}, predicted," if any(run.predicted for run in groups[row].runs) else duration(mean)


def _some(efforts: Values) -> str:
    """Such as ` with 3 of 5 seeds` if some missed the target, else empty."""
    reached = len(_reached(efforts))
    return "" if reached == len(efforts) else f" with {reached} of {len(efforts)} seeds"


def _over_rival(margins: Mapping[int, Interval], names: Sequence[str], early: Sequence[int]) -> str:
    """How much longer the rival takes, and whether the seeds support it; empty without rivals."""
    if not margins:
        return ""
    rival = next((row for row, margin in margins.items() if not _holds(margin)), next(iter(margins)))
    margin = margins[rival]
    seeds = counted(margin.seeds, "seed", "seeds")
    if early:
        whose = ", ".join(names[row] for row in early)
        support = f"undecided, as {whose} had reached it at the first value, so the steps are an upper bound"
    elif _holds(margin):
        support = f"the ranking holds over {seeds}"
    else:
        more = verdict(margin, low=_MORE_THAN_1).seeds
        needed = f", about {more - margin.seeds:,} more would decide at even odds" if more else ""
        support = f"undecided after {seeds}{needed}"
    return f"; {names[rival]} {_longer(margin)}: {support}"


def _longer(margin: Interval) -> str:
    if lost := margin.infinite[0]:
        reached = f"has reached it with {margin.seeds - lost} of {margin.seeds} seeds"
        return reached if lost < margin.seeds else "has not reached it"
    close = "1.00" in (f"{margin.low:.2f}", f"{margin.middle:.2f}")  # a margin of less than a percent can hold
    return f"takes {ratio_cell(margin, 4 if close else 2)} times as long"


def _holds(margin: Interval) -> bool:
    return bool(verdict(margin, low=_MORE_THAN_1).holds)


def duration(seconds: float) -> str:
    """A time as text."""
    if seconds < 100:
        return f"{seconds:.3g} s"
    return f"{seconds / 60:.1f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
