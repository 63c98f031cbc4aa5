"""A comparison as text, CSV, JSON, a figure and a page: written after every round of seeds, each file whole."""

import io
import math
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from html import escape
from pathlib import Path
from string import Template
from typing import Any

from pipetrain.engine.errors import ConfigError, one_line
from pipetrain.engine.files import strict_json
from pipetrain.engine.files.json_reader import from_json
from pipetrain.reporting.comparison.contenders import Contender
from pipetrain.reporting.comparison.outcomes import Comparison, Outcome, duration, geometric_mean_of, mean_of, shown
from pipetrain.reporting.comparison.runs import FAILED, PlannedRun
from pipetrain.reporting.seed_statistics import Interval, Values
from pipetrain.reporting.steps_to_loss import SHARE
from pipetrain.reporting.sweep.compared_run import ComparedRun
from pipetrain.reporting.sweep.lines import End, label_ends, line_styles
from pipetrain.reporting.sweep.slowdown import AT_FIRST, ratio_cell
from pipetrain.reporting.sweep.sweep_tables import WIDTH
from pipetrain.runner.config.composition import without_section
from pipetrain.runner.terminal.style import GRAY, figure, page_style
from pipetrain.runner.terminal.text_table import counted, csv_table, printable, size_of, text_table, unit_of
from pipetrain.runner.tracking.files import write_whole

_TEMPLATE = Path(__file__).with_name("page.html")
_JSON = "comparison.json"
FILES = ("comparison.txt", "comparison.html", _JSON, "comparison.csv", "runs.csv", "pareto.png", "pareto.svg")
_MEASURED, _PREDICTED = (0, 1, 2, 3, 4, 5), (0, 6, 7, 8)
"""Columns of the two tables for the terminal."""
_INTERVALS = (
    "means over seeds, of steps and times the geometric ones, in parentheses their 95 % intervals (t and bootstrap, "
    "paired by seed in ratios); the predicted time of a step has none"
)


def write(found: Comparison) -> None:
    """Writes the files of a comparison into its folder."""
    drawn = io.StringIO()
    draw(drawn, found)
    texts = {
        "pareto.svg": drawn.getvalue(),
        "comparison.txt": text(found) + "\n",
        "comparison.html": page(found, drawn.getvalue()),
        _JSON: strict_json.dumps(as_json(found), indent=1) + "\n",
        "comparison.csv": csv_table(list(_rows(found))),
        "runs.csv": csv_table([_run_row(*each) for each in _every_run(found)]),
    }
    for name, content in texts.items():
        write_whole(found.folder / name, content)
    draw(found.folder / "pareto.png", found)


def stored(folder: Path) -> tuple[list[Contender], dict[str, ComparedRun]]:
    """The contenders of a comparison that was written into a folder earlier, and its failed runs by their directories.

    Both are empty if there is no comparison.

    Raises:
        ConfigError: its file is damaged.
    """
    file = folder / _JSON
    if not file.is_file():
        return [], {}
    try:
        content = strict_json.read(file)
        found: tuple[Contender, ...] = from_json(tuple[Contender, ...], content["contenders"], "contenders")
        rows = [row for row in content["runs"] if row["status"] == FAILED]
        failed = {row["folder"]: ComparedRun(folder / "runs" / row["folder"], FAILED, row["reason"]) for row in rows}
    except (OSError, ValueError, KeyError, TypeError, ConfigError) as error:
        raise ConfigError(f"{file}: damaged: {one_line(error)}; move it away, or name another folder") from error
    return list(found), failed


def text(found: Comparison) -> str:
    """The sentence, the tables and the notes for the terminal."""
    heads, rows = _table(found)
    parts = []
    for columns in (_MEASURED, _PREDICTED):
        part = [[row[column] for column in columns] for row in (heads, *rows)]
        parts += ["", *text_table(part[0], part[1:], "<" + ">" * (len(columns) - 1))]
    wrapped = (line for note in notes(found) for line in textwrap.wrap(note, WIDTH, subsequent_indent="  "))
    return "\n".join(map(printable, [*textwrap.wrap(found.head, WIDTH), *parts, "", *wrapped]))


def notes(found: Comparison) -> list[str]:
    """What the table means, what is missing, and what diverged or failed."""
    lines = [_INTERVALS]
    if found.slowdown is not None and found.slowdown.share is not None:
        whose = f"the mean of {found.slowdown.baseline} after {SHARE:.0%} of its steps"
        lines.append(f"the target is {found.goal}, {whose}; --target sets another")
    if found.slowdown is not None and found.slowdown.width:
        lines.append(f"training losses are means over {found.slowdown.width:.3g} steps")
    if len({frozenset(found.efforts(each)) for each in found.comparable}) > 1:
        whose = "all ranked ones" if found.unranked else "all"
        some = f"{counted(len(found.common_seeds), 'seed', 'seeds')} that {whose} have run"
        lines.append(f"ranked over the {some}, and the first against each other over all that both have run")
    bounds = [each.contender.name for each in found.outcomes if found.at_first(each)]
    if bounds:
        lines.append(f"{AT_FIRST}: {', '.join(bounds)}; a harder target or more evaluations tell more")
    for each in found.outcomes:
        if not each.contender.costs.fits:
            lines.append(f"{each.contender.name}: does not fit into the memory of the devices, so it is ranked last")
    costs = dict.fromkeys(note for each in found.outcomes for note in each.contender.costs.notes)
    missing = [f"missing: {line}" for line in found.missing]
    return [*lines, *_notes_on_tuning(found), *(f"prediction: {note}" for note in costs), *missing, *found.lost]


def _notes_on_tuning(found: Comparison) -> list[str]:
    lines = []
    tuned = [each for each in found.outcomes if not each.tuning.without_effect]
    ends = [f"{' '.join(each.tuning.at_end)} of {each.contender.name}" for each in tuned if each.tuning.at_end]
    if ends:
        where = "at the edge of the range that was tried, so a better one may lie beyond it"
        lines.append(f"the best value is {where}: {'; '.join(ends)}")
    for each in found.outcomes:
        if each.tuning.ended and each.tuning.without_effect:
            name, settings = each.contender.name, ", ".join(axis.setting for axis in each.contender.axes)
            same = f"all candidates ended with the same {each.contender.metric}"
            if each.without_effect:
                lines.append(f"{settings} has no effect on {name}: {same}")
            else:
                lines.append(f"{settings} of {name} is not tuned: {same}, so the first one was chosen")
    return lines


def _table(found: Comparison) -> tuple[list[str], list[list[str]]]:
    """The heads of the columns, and a row for each contender, the fastest first."""
    baseline = found.baseline_outcome.contender.name
    heads = ["", "tuned", f"steps to {found.goal}", f"over {baseline}", f"final {found.metric}", "seeds"]
    heads += [f"time to {found.goal}", "ms/step", "largest stage"]
    return heads, [_cells(found, outcome) for outcome in found.ranked]


def _cells(found: Comparison, outcome: Outcome) -> list[str]:
    costs, best = outcome.contender.costs, outcome.tuning.best
    step_s = costs.seconds(outcome.contender.steps)
    completed, final = len(outcome.group.completed), outcome.finals(found.metric)
    lost = len(outcome.reported) - completed
    some = f" ({len(final)} of {completed})" if 0 < len(final) < completed else ""
    return [
        outcome.contender.name,
        " ".join(map(without_section, best or ())) or "-",
        shown(geometric_mean_of(found.steps(outcome)), "{:,.0f}".format),
        ratio_cell(found.over_baseline(outcome)),
        shown(mean_of(final), "{:.4g}".format) + some,
        f"{len(outcome.reported)}" + (f", {lost} lost" if lost else ""),
        shown(geometric_mean_of(found.seconds(outcome)), duration),
        "-" if step_s is None else f"{1000 * step_s / outcome.contender.steps:.3g}",
        "-" if costs.memory_bytes is None else size_of(costs.memory_bytes),
    ]


def as_json(found: Comparison) -> dict[str, Any]:
    """All numbers."""
    return {
        "head": found.head,
        "target": {found.slowdown.name: found.slowdown.target} if found.slowdown else None,
        "baseline": found.baseline_outcome.contender.name,
        "configurations": list(_rows(found)),
        "missing": found.missing,
        "lost": found.lost,
        "contenders": [asdict(each.contender) for each in found.outcomes],
        "runs": [_run_row(*each) for each in _every_run(found)],
    }


def _rows(found: Comparison) -> Iterator[dict[str, Any]]:
    """The numbers of each contender; those of means and ratios with the ends of their intervals."""
    for outcome in found.ranked:
        contender, steps = outcome.contender, found.steps(outcome)
        seconds_all = contender.costs.seconds(contender.steps)
        yield {
            "configuration": contender.name,
            "method": contender.method,
            **contender.differing,
            "tuned": " ".join(outcome.tuning.best or ()),
            "seeds": len(outcome.reported),
            "reached": sum(map(math.isfinite, steps.values())),
            **_numbers("steps_to_target", geometric_mean_of(steps)),
            **_numbers("slowdown", found.over_baseline(outcome)),
            "seconds_per_step": None if seconds_all is None else seconds_all / contender.steps,
            **_numbers("seconds_to_target", geometric_mean_of(found.seconds(outcome))),
            "memory_bytes": contender.costs.memory_bytes,
            **_numbers(f"final_{found.metric}", mean_of(outcome.finals(found.metric))),
        }


def _numbers(name: str, interval: Interval | None) -> dict[str, float | None]:
    values = (None,) * 3 if interval is None else (interval.middle, interval.low, interval.high)
    return dict(zip((name, f"{name}_low", f"{name}_high"), values, strict=True))


def _every_run(found: Comparison) -> Iterator[tuple[PlannedRun, ComparedRun]]:
    for outcome in found.outcomes:
        yield from outcome.trials
        yield from outcome.reported


def _run_row(planned: PlannedRun, run: ComparedRun) -> dict[str, Any]:
    finals = {f"final_{name}": value for name, value in run.final.items()}
    return {
        "configuration": planned.contender.name,
        **planned.contender.differing,
        "purpose": "tuning" if planned.tunes else "reported",
        "tuned": " ".join(planned.candidate),
        "seed": planned.seed,
        "steps": planned.steps,
        "status": run.status,
        "reason": run.reason,
        "wall_s": run.numbers.get("wall_s"),
        "folder": run.path.name,
        **finals,
    }


def page(found: Comparison, figure: str) -> str:
    """The document: the sentence, the table, the figure as an SVG element, and the settings that were tried."""
    parts = {
        "TITLE": escape(found.folder.resolve().name),
        "STYLE": page_style(),
        "HEAD": escape(found.head),
        "TABLE": _html_table(*_table(found)),
        "NOTES": "\n".join(f"<p>{escape(line)}</p>" for line in notes(found)),
        "FIGURE": figure,
        "TRIALS": _html_table(*_trials(found)),
    }
    return Template(_TEMPLATE.read_text(encoding="utf-8")).substitute(parts)


def _trials(found: Comparison) -> tuple[list[str], list[list[str]]]:
    """A row for each candidate, a column for each length of its runs; the chosen one is marked."""
    lengths = sorted({steps for each in found.outcomes for _, steps in each.tuning.losses})
    rows = []
    for outcome in found.outcomes:
        contender, losses = outcome.contender, outcome.tuning.losses
        sign = 1 if contender.metric in contender.lower else -1
        failed = {(planned.candidate, planned.steps) for planned, run in outcome.trials if run.status == "failed"}
        texts = {
            trial: f"{sign * loss:.4g}" if math.isfinite(loss) else "failed" if trial in failed else "diverged"
            for trial, loss in losses.items()
        }
        for candidate in dict.fromkeys(each for each, _ in losses):
            cells = [texts.get((candidate, n), "") for n in lengths]
            mark = "chosen" if candidate == outcome.tuning.best else ""
            rows.append([contender.name, " ".join(candidate), contender.metric, *cells, mark])
    return ["", "tried", "by", *(counted(n, "step", "steps") for n in lengths), ""], rows


def _html_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(each)}</th>" for each in heads)
    body = ("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return "\n".join([f"<table><thead><tr>{head}</tr></thead>", "<tbody>", *body, "</tbody></table>"])


def draw(file: Path | io.StringIO, found: Comparison) -> None:
    """Draws the time to the goal against the memory of the largest stage, and a line through the Pareto front."""
    known = [(each, values) for each in found.ranked if (values := _finite(found.efforts(each)))]
    known = [(each, values) for each, values in known if each.contender.costs.memory_bytes is not None]
    unit, size = unit_of(max((each.contender.costs.memory_bytes or 0 for each, _ in known), default=0))
    styles = line_styles([each.contender.method for each, _ in known])
    points, ends = [], []
    with figure(file, (8.4,), height=4.4) as (panel,):
        for (each, values), style in zip(known, styles, strict=True):
            interval, x = geometric_mean_of(values), (each.contender.costs.memory_bytes or 0) / size
            assert interval is not None
            y, whole = interval.middle, len(values) == len(each.reported)
            if interval.seeds > 1:
                panel.plot([x, x], [interval.low, interval.high], color=style.color, lw=1.2, alpha=0.6)
            panel.plot(x, y, "o", color=style.color, markersize=6, markerfacecolor=style.color if whole else "white")
            ends.append(End(x, y, each.contender.name, style.color))
            points += [(x, y)] if whole and each.contender.costs.fits else []
        front = sorted(point for point in points if not any(_dominates(other, point) for other in points))
        panel.plot([x for x, _ in front], [y for _, y in front], color=GRAY, lw=1.0, ls="--", zorder=0)
        what = f"seconds to {found.goal}, predicted" if found.timed else f"steps to {found.goal}"
        panel.set(xlabel=f"{unit} on the device of the largest stage, predicted", ylabel=what)
        panel.set_title("hollow: not reached with every seed; dashed: the Pareto front")
        panel.set_xlim(left=0)
        panel.set_ylim(bottom=0)
        label_ends(panel, ends)


def _finite(values: Values) -> Values:
    return {seed: value for seed, value in values.items() if math.isfinite(value)}


def _dominates(other: tuple[float, float], point: tuple[float, float]) -> bool:
    return other != point and other[0] <= point[0] and other[1] <= point[1]
