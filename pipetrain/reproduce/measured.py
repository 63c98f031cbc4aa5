"""What is kept of an experiment: a row for each run as CSV, tables and figure, and how it was made."""

import csv
import io
import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pipetrain.errors import ConfigError
from pipetrain.report.sweep import comparison
from pipetrain.report.sweep.columns import TIMINGS
from pipetrain.report.sweep.compared_run import ComparedRun
from pipetrain.report.sweep.groups import SweepGroup, collect
from pipetrain.reproduce.field_map import ENDED, ended_runs
from pipetrain.reproduce.targets import Target
from pipetrain.tracking import strict_json
from pipetrain.tracking.files import write_whole

_MADE_WITH = ("pipetrain_version", "torch_version", "python_version", "git_commit", "platform", "cpu", "cores", "gpus")
_Row = Mapping[str, Any]
_SETTINGS = ("dataset", "method", "partition.stages", "optimizer.lr", "seed")


def keep(target: Target, runs: Path, folder: Path, *, timed: bool = True) -> list[Path]:
    """Writes runs.csv, made.json, and of all but the map sweep.md, .json, .png and .html; returns the files.

    The map has hundreds of runs, and a page and a figure of its own. What was kept of it before stays, unless there are
    runs of the same settings now; `earlier` in made.json then says with what that was made.

    Args:
        target: what was run.
        runs: the folder of its sweep, or sweeps.
        folder: for the files.
        timed: whether times and throughput are kept; they say little where other work shared the machine.

    Raises:
        ConfigError: there are no runs, or one cannot be read.
    """
    found = collect([runs], {})
    if found.skipped:
        damaged = found.skipped[0]
        raise ConfigError(f"{damaged.path}: a damaged run: {damaged.reason}; remove it, or run it again")
    groups, metric = comparison.ranked(found.groups, None)
    made = _made(target, runs, groups) | {"timed": timed}
    groups = [replace(group, runs=[_kept(run, runs, timed=timed) for run in group.without_repeats]) for group in groups]
    rows = [_row(group.name, run) for group in groups for run in group.runs]
    if target.of_map and (before := _not_among(rows, ended_runs([folder / "runs.csv"]))):
        rows = [*before, *rows]
        made = _with_earlier(made, rows, json.loads((folder / "made.json").read_text(encoding="utf-8")))
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / "runs.csv", _table(rows))
    write_whole(folder / "made.json", strict_json.dumps(made, indent=1) + "\n")
    shown = (
        []
        if target.of_map
        else comparison.write(groups, metric, folder / "sweep", f"{target.experiment}, {target.scale}")
    )
    return [folder / "runs.csv", folder / "made.json", *shown]


def _kept(run: ComparedRun, runs: Path, *, timed: bool) -> ComparedRun:
    """The run by its name in the sweep, which says nothing of where it was made, and without what is not kept."""
    left_out = () if timed else TIMINGS
    return replace(
        run,
        path=run.path.relative_to(runs),
        numbers={name: value for name, value in run.numbers.items() if name not in left_out},
        by_stage={name: values for name, values in run.by_stage.items() if name not in left_out},
        curves={name: curve for name, curve in run.curves.items() if name not in left_out},
    )


def _table(rows: Sequence[_Row]) -> str:
    columns = list(dict.fromkeys(name for row in rows for name in row))
    file = io.StringIO()
    writer = csv.DictWriter(file, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return file.getvalue()


def _not_among(rows: Sequence[_Row], before: Sequence[_Row]) -> list[_Row]:
    """The rows before of settings with which no run has ended now."""
    now = {tuple(str(row[name]) for name in _SETTINGS) for row in rows if row["status"] in ENDED}
    return [row for row in before if tuple(row[name] for name in _SETTINGS) not in now]


def _with_earlier(made: dict[str, Any], rows: Sequence[_Row], before: Mapping[str, Any]) -> dict[str, Any]:
    """What the whole table was made with, if some of its rows are from before."""
    with_now, with_before = made["made_with"], [*before.get("earlier", []), before["made_with"]]
    earlier = [each for number, each in enumerate(with_before) if each not in [with_now, *with_before[:number]]]
    seeds = sorted({int(row["seed"]) for row in rows})
    return made | {"seeds": seeds, "runs": len(rows), "earlier": earlier}


def _row(name: str, run: ComparedRun) -> _Row:
    settings = {setting: run.settings.get(setting) for setting in _SETTINGS}
    return {"name": name, **settings, "status": run.status, **run.values}


def _made(target: Target, runs: Path, groups: Sequence[SweepGroup]) -> dict[str, Any]:
    """The command, versions, machine kind, seeds and time; neither names of machines nor folders of runs."""
    every = [run for group in groups for run in group.runs]
    return {
        "command": shlex.join(["pipetrain", *target.words(Path("DIR"))]),
        "seeds": sorted({run.settings["seed"] for run in every if "seed" in run.settings}),
        "runs": len(every),
        "wall_s": sum(run.numbers.get("wall_s", 0.0) for run in every),
        "made_with": next(_versions(runs), {}),
    }


def _versions(runs: Path) -> Iterator[Mapping[str, Any]]:
    for path in sorted(runs.rglob("summary.json")):
        summary = json.loads(path.read_text(encoding="utf-8"))
        yield {name: summary[name] for name in _MADE_WITH if name in summary}
