"""Comparisons that rounds of an experiment make with `pipetrain compare`: kept, and read again."""

import csv
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from papers.kept_runs import ENDED, RUNS, Row, row_of
from papers.results import MADE, TARGETS, kept_run, made_by, made_of, made_with, rows_made_by, steps_to_loss, with_steps
from papers.targets import ReproductionTarget, SweepRound
from pipetrain.data.files import strict_json
from pipetrain.reporting.sweep.compared_run import ComparedRun
from pipetrain.reporting.sweep.groups import SweepGroup
from pipetrain.reporting.sweep.run_reader import read
from pipetrain.runner.terminal.text_table import csv_table
from pipetrain.runner.tracking.files import write_whole
from pipetrain.runner.tracking.run_directory import RunDirectory

_TABLE = "comparison.md"
"""File of a comparison with its tables."""


def keep_comparison(this: SweepRound, folder: Path, results: Path) -> list[Path]:
    """Writes runs.csv with the reported runs, made.json, and the table of a comparison; returns the files.

    Args:
        this: the round.
        folder: of the comparison.
        results: the folder of what is kept of the target.

    Raises:
        ConfigError: a run cannot be read.
    """
    if not (folder / RUNS).is_file():
        return []
    runs: dict[str, list[ComparedRun]] = {}
    with (folder / RUNS).open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            if row["purpose"] == "reported" and row["status"] in ENDED:
                run = kept_run(read(RunDirectory(folder / "runs" / row["folder"]), {}), folder, timed=False)
                runs.setdefault(row["configuration"], []).append(run)
    groups = [SweepGroup(name, each) for name, each in runs.items()]
    found = steps_to_loss(this.target, groups, _targets(this, results)) or steps_to_loss(this.target, groups)
    groups = with_steps(groups, found)
    missing = json.loads((folder / "state.json").read_text(encoding="utf-8"))["missing"]
    made = made_with(this.words(Path("DIR")), folder, groups)
    made |= {"missing": missing, TARGETS: {column: each.target for column, each in found.items()}}
    kept = results / this.name
    kept.mkdir(parents=True, exist_ok=True)
    rows = [{**row_of(group.name, run, whole=False), **_given(this, run)} for group in groups for run in group.runs]
    write_whole(kept / RUNS, csv_table(rows))
    write_whole(kept / MADE, strict_json.dumps(made, indent=1) + "\n")
    write_whole(kept / _TABLE, (folder / _TABLE).read_text(encoding="utf-8"))
    return [kept / name for name in (RUNS, MADE, _TABLE)]


def is_kept(this: SweepRound, results: Path) -> bool:
    """True if all of the comparison is kept already, as the same command made it."""
    kept = results / this.name
    return made_by(this.words(Path("DIR")), kept) and not made_of(kept)["missing"]


def compared_runs(target: ReproductionTarget, results: Path) -> Iterator[tuple[SweepRound, list[Row]]]:
    """The rounds that compare, with the reported runs of each as far as they are kept, and of the settings of today.

    Args:
        target: an experiment at a scale.
        results: the folder of what is kept of it.
    """
    for each in target.rounds:
        if each.compares:
            kept = results / each.name
            yield each, rows_made_by(each.words(Path("DIR")), kept)


def _given(this: SweepRound, run: ComparedRun) -> Mapping[str, Any]:
    """The values of the settings that the round gives."""
    return {name: run.settings[name] for name in this.given if name in run.settings}


def _targets(this: SweepRound, results: Path) -> Mapping[str, float]:
    """Column -> the baseline's loss, of the first earlier round whose comparison has the baseline."""
    rounds = (each for each in this.target.rounds if each.compares and each.number < this.number)
    return next((found for each in rounds if (found := made_of(results / each.name).get(TARGETS))), {})
