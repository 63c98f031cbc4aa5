"""Runs the papers' experiments at a scale, and keeps their results."""

import argparse
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from papers.compared import is_kept, keep_comparison
from papers.computed import computed_part
from papers.field_map.grid import MapRun, runs_of
from papers.field_map.losses import best_rates, ended_runs
from papers.results import keep_results
from papers.targets import BEST_RATE, SweepRound, full_name, presets_of, rounds_of, targets_of
from pipetrain.commands.output_folder import check_writable
from pipetrain.errors import ExitCode
from pipetrain.launch.signals import handled_by


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


Sweep = Sequence[str]
"""The words of a command, without `pipetrain`."""


def sweeps_of(this: SweepRound, outputs: Path, results: Path) -> list[Sweep]:
    """The commands of a round, in the order in which they are run.

    It is one sweep. What is left of a round of the map, or has its own learning rates at each depth, is several.

    Args:
        this: the round.
        outputs: for the folders of runs.
        results: with what was kept of the map: runs that are not run again, and tell which learning rates are best.
    """
    if this.compares and is_kept(this, this.target.results(results)):
        return []
    if not this.target.of_map:
        return [this.words(outputs)]
    rows = ended_runs([this.target.results(results) / "runs.csv"])
    wanted, kept = runs_of(this, best_rates(rows)), {MapRun.of(row) for row in rows}
    left = [run for run in wanted if run not in kept]
    if left == wanted and not this.at_best_rates:
        return [this.words(outputs)]
    return [_sweep(this, outputs, *each) for each in _products(left)]


def _products(runs: Sequence[MapRun]) -> list[tuple[int, float, Sequence[int], list[str]]]:
    """The runs as sweeps: (depth, rate, seeds, methods), where methods have the same seeds."""
    seeds: dict[tuple[int, float, str], list[int]] = {}
    for method, depth, rate, seed in sorted(runs):
        seeds.setdefault((depth, rate, method), []).append(seed)
    methods: dict[tuple[int, float, tuple[int, ...]], list[str]] = {}
    for (depth, rate, method), missing in seeds.items():
        methods.setdefault((depth, rate, tuple(missing)), []).append(method)
    return [(*shared, names) for shared, names in methods.items()]


def _sweep(
    this: SweepRound, outputs: Path, depth: int, rate: float, seeds: Sequence[int], methods: Sequence[str]
) -> Sweep:
    words = [f"seed={','.join(map(str, seeds))}", f"optimizer.lr={rate:g}", f"partition.stages={depth}"]
    if this.target.sweeps_methods:
        words.append(f"method={','.join(methods)}")
    folder = "_".join(["lr", f"{rate:g}", "stages", str(depth), "seed", *map(str, seeds)])
    return this.target.words(this.runs(outputs) / folder, words)


_BROKEN_OFF = (ExitCode.INTERRUPTED, ExitCode.PREEMPTED)
_KEPT = (ExitCode.COMPLETED, ExitCode.DIVERGED, *_BROKEN_OFF)
"""A method that diverges is a result, and so is a part of a sweep."""


def reproduce(options: argparse.Namespace) -> ExitCode:
    """Runs all; where one fails the others follow, it is listed at the end, and its exit code is returned."""
    if not presets_of(options.name) and (compute := computed_part(options.name)):
        print(*compute(options.outputs / full_name(options.name).partition("/")[0]), sep="\n")
        return ExitCode.COMPLETED
    targets = targets_of(options.name, options.scale)
    rounds = rounds_of(targets)
    if options.list:
        for each in rounds:
            print(*_listed(each, options), sep="\n")
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


def _listed(this: SweepRound, options: argparse.Namespace) -> list[str]:
    if this.at_best_rates:
        seeds = shlex.join(word for word in this.settings if word != BEST_RATE)
        return [f"# {this.target.experiment}: then {seeds}, each method and depth at its best learning rate so far"]
    sweeps = sweeps_of(this, options.outputs, options.output)
    return [shlex.join(["pipetrain", *words]) for words in sweeps] or [f"# {_nothing_left(this, options.output)}"]


def _nothing_left(this: SweepRound, results: Path) -> str:
    target = this.target
    return f"{target.experiment}: {target.results(results)} already has all of round {this.number}"


def _run(this: SweepRound, options: argparse.Namespace) -> ExitCode:
    """Runs the sweeps of a round, and keeps what there is of its target unless one failed."""
    target = this.target
    runs = target.runs(options.outputs)
    codes = []
    sweeps = sweeps_of(this, options.outputs, options.output)
    if not sweeps:
        print(_nothing_left(this, options.output))
    for words in sweeps:
        print(shlex.join(["pipetrain", *words]), flush=True)
        codes.append(carried_out([sys.executable, "-m", "pipetrain", *words]))
        if codes[-1] in _BROKEN_OFF:
            break
    ended = next((code for code in codes if code not in _KEPT), codes[-1] if codes else ExitCode.COMPLETED)
    if ended not in _KEPT:
        return ExitCode(ended) if ended in set(ExitCode) else ExitCode.FAILED
    if this.compares:
        kept = keep_comparison(this, this.runs(options.outputs), target.results(options.output))
    elif any(runs.rglob("summary.json")):
        kept = keep_results(target, runs, target.results(options.output), timed=not options.untimed)
    else:
        kept = []
    for path in kept:
        print(f"written to {path}")
    return ExitCode(ended) if ended in _BROKEN_OFF else ExitCode.COMPLETED
