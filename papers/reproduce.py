"""Runs the papers' experiments at a scale, and keeps their results."""

import argparse
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from papers.compared import is_kept, keep_comparison
from papers.computed import computed_part
from papers.presets import preset
from papers.results import has_every_run, keep_results
from papers.targets import SweepRound, command_of, full_name, presets_of, rounds_of, targets_of, with_presets
from pipetrain.data.files import strict_json
from pipetrain.engine.errors import ExitCode
from pipetrain.runner.launch.signals import handled_by
from pipetrain.runner.terminal.output_folder import check_writable
from pipetrain.runner.tracking.files import new_folder, write_whole
from pipetrain.runner.tracking.run_lock import owner_of


def carried_out(command: Sequence[str]) -> int:
    """The exit code of a command; the signals that would end this process are passed on to it, and it is waited for.

    It has its own process group: Ctrl-C at a terminal would reach it twice, and a second one ends a run immediately.
    """

    def ignore(_number: int, _frame: FrameType | None) -> None:
        """A moment before there is a process to pass them on to."""

    with handled_by(ignore):
        process = subprocess.Popen(command, process_group=0)

        def pass_on(number: int, _frame: FrameType | None) -> None:
            process.send_signal(number)

        with handled_by(pass_on):
            return process.wait()


_BROKEN_OFF = (ExitCode.INTERRUPTED, ExitCode.PREEMPTED)
_KEPT = (ExitCode.COMPLETED, ExitCode.DIVERGED, *_BROKEN_OFF)
"""A method that diverges is a result, and so is a part of a sweep."""


def reproduce(options: argparse.Namespace) -> ExitCode:
    """Runs all; where one fails the others follow, it is listed at the end, and its exit code is returned."""
    if not presets_of(options.name) and (compute := computed_part(options.name)):
        folder = options.outputs / full_name(options.name).partition("/")[0]
        print(f"# {options.name}: needs no training" if options.list else "\n".join(compute(folder)))
        return ExitCode.COMPLETED
    targets = targets_of(options.name, options.scale)
    rounds = rounds_of(targets)
    if options.list:
        for each in rounds:
            kept = _kept_before(each, options)
            print(f"# {kept}" if kept else command_of(with_presets(each.words(options.outputs))))
        return ExitCode.COMPLETED
    for folder in (options.output, options.outputs):
        check_writable(str(folder), folder)
    failed: dict[str, ExitCode] = {}
    for each in rounds:
        if code := _run(each, options):
            failed.setdefault(each.target.experiment, code)
        if code in _BROKEN_OFF:
            break
    if failed and len(targets) > 1:
        print(f"{len(failed)} of {len(targets)} experiments did not complete; repeat the command to continue them:")
        print(*(f"  {name}: {code.name.lower()}" for name, code in failed.items()), sep="\n")
    return next(iter(failed.values()), ExitCode.COMPLETED)


def _kept_before(this: SweepRound, options: argparse.Namespace) -> str | None:
    """A line that says so if nothing is left to run of a target with comparisons, whose rounds take hours.

    A target with sweeps only is run again, unless its runs are in the folder for runs.
    """
    target, results = this.target, this.target.results(options.output)
    if not any(each.compares for each in target.rounds):
        return None
    if not (is_kept(this, results) if this.compares else has_every_run(target, results)):
        return None
    return f"{target.experiment}: {results} already has all of round {this.number}; use another -o to measure it again"


def _set_aside(this: SweepRound, outputs: Path) -> Path | None:
    """Moves runs of other settings away, which would be continued or compared; returns where to, if there are any.

    Settings change with the preset, or with its small scale.
    """
    runs = this.runs(outputs)
    settings = [this.words(Path("DIR")), preset(this.target.experiment).content]
    made, marker = strict_json.dumps(settings) + "\n", runs / "settings.json"
    if owner_of(runs) is not None:
        return None  # the command says who uses the folder
    aside = None
    if marker.is_file() and marker.read_text(encoding="utf-8") != made:
        parts = [this.target.scale, *([this.name] if this.name else []), "earlier"]
        aside = new_folder(this.target.runs(outputs).with_name("-".join(parts)))
        runs.replace(aside)
    runs.mkdir(parents=True, exist_ok=True)
    write_whole(marker, made)
    return aside


def _run(this: SweepRound, options: argparse.Namespace) -> ExitCode:
    """Runs a round, and keeps what there is of its target unless it failed."""
    if kept := _kept_before(this, options):
        print(kept)
        return ExitCode.COMPLETED
    target, words = this.target, with_presets(this.words(options.outputs))
    # what is kept of a target is collected from all of its sweeps
    same = [this] if this.compares else [each for each in target.rounds if not each.compares]
    for each in same:
        if aside := _set_aside(each, options.outputs):
            print(f"the runs of other settings are now in {aside}")
    print(command_of(words), flush=True)
    ended = carried_out([sys.executable, "-m", "pipetrain", *words])
    if ended not in _KEPT:
        return ExitCode(ended) if ended in set(ExitCode) else ExitCode.FAILED
    results = target.results(options.output)
    if this.compares:
        files = keep_comparison(this, this.runs(options.outputs), results)
    elif not any((runs := target.runs(options.outputs)).rglob("summary.json")):
        files = []
    elif ended in _BROKEN_OFF and has_every_run(target, results):
        print(f"{results} stays as it is: it has all runs")
        files = []
    else:
        files = keep_results(target, runs, results, timed=not options.untimed)
    for path in files:
        print(f"written to {path}")
    return ExitCode(ended) if ended in _BROKEN_OFF else ExitCode.COMPLETED
