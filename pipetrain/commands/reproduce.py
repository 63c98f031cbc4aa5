"""`pipetrain reproduce`: runs the papers' experiments at a scale, and keeps their results."""

import argparse
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from pipetrain.commands import Subparsers, nested_command
from pipetrain.commands.output_folder import check_writable
from pipetrain.errors import ExitCode

if TYPE_CHECKING:
    from pipetrain.reproduce.targets import Round

_DESCRIPTION = """\
Runs the presets of an experiment, a table, a figure or whole papers as sweeps, one after the other, the cheapest first,
and keeps the measured numbers, their figure, the command, versions, seeds, time and kind of machine. One that fails is
listed at the end. A second call goes on where the first was broken off; what was measured until then is kept, too. The
map is run in rounds: a coarse map of all networks first, and last the other seeds at the best learning rates. Its runs
that are kept are not run again."""
_BROKEN_OFF = (ExitCode.INTERRUPTED, ExitCode.PREEMPTED)
_KEPT = (ExitCode.COMPLETED, ExitCode.DIVERGED, *_BROKEN_OFF)
"""A method that diverges is a result, and so is a part of a sweep."""


def add_parser(subparsers: Subparsers) -> None:
    """Adds `reproduce`."""
    parser = subparsers.add_parser(
        "reproduce",
        help="run the papers' experiments and keep their results",
        description=_DESCRIPTION,
        epilog="For example: pipetrain reproduce zhang/table2_lenet5 --scale small",
    )
    parser.add_argument(
        "name",
        metavar="NAME",
        help="such as pipeoptim, pipeoptim/table4, zhang/table2_lenet5, map, or papers: all that they have",
    )
    parser.add_argument("--scale", default="small", help="small (default): minutes on two cores; full: the paper's own")
    parser.add_argument(
        "--untimed", action="store_true", help="keep neither times nor throughput, where other work shares the machine"
    )
    parser.add_argument("--list", action="store_true", help="print the commands and run none")
    parser.add_argument(
        "--outputs", type=Path, default=Path("outputs/reproduce"), metavar="FOLDER", help="for the runs"
    )
    parser.add_argument("-o", "--output", type=Path, default=Path("results"), metavar="FOLDER", help="for the results")
    parser.set_defaults(carry_out=carry_out, takes_choice_of="experiment")


def carry_out(options: argparse.Namespace) -> ExitCode:
    """Runs all; where one fails the others follow, it is listed at the end, and its exit code is returned."""
    from pipetrain.reproduce.targets import rounds_of, targets_of

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
        print(f"{len(failed)} of {len(targets)} experiments did not complete; the same command goes on with them:")
        print(*(f"  {name}: {code.name.lower()}" for name, code in failed.items()), sep="\n")
    return next(iter(failed.values()), ExitCode.COMPLETED)


def _listed(this: "Round", options: argparse.Namespace) -> list[str]:
    from pipetrain.reproduce.round_sweeps import sweeps_of
    from pipetrain.reproduce.targets import BEST_RATE

    if this.at_best_rates:
        seeds = shlex.join(word for word in this.settings if word != BEST_RATE)
        return [f"# {this.target.experiment}: then {seeds}, each method and depth at its best learning rate so far"]
    sweeps = sweeps_of(this, options.outputs, options.output)
    return [shlex.join(["pipetrain", *words]) for words in sweeps] or [f"# {_nothing_left(this, options.output)}"]


def _nothing_left(this: "Round", results: Path) -> str:
    target = this.target
    return f"{target.experiment}: nothing is left of round {this.number} beside what {target.results(results)} has"


def _run(this: "Round", options: argparse.Namespace) -> ExitCode:
    """Runs the sweeps of a round, and keeps what there is of its target unless one failed."""
    from pipetrain.reproduce.measured import keep
    from pipetrain.reproduce.round_sweeps import sweeps_of

    target = this.target
    runs = target.runs(options.outputs)
    codes = []
    sweeps = sweeps_of(this, options.outputs, options.output)
    if not sweeps:
        print(_nothing_left(this, options.output))
    for words in sweeps:
        print(shlex.join(["pipetrain", *words]), flush=True)
        codes.append(nested_command.carried_out([sys.executable, "-m", "pipetrain", *words]))
        if codes[-1] in _BROKEN_OFF:
            break
    ended = next((code for code in codes if code not in _KEPT), codes[-1] if codes else ExitCode.COMPLETED)
    if ended not in _KEPT:
        return ExitCode(ended) if ended in set(ExitCode) else ExitCode.FAILED
    if any(runs.rglob("summary.json")):
        for path in keep(target, runs, target.results(options.output), timed=not options.untimed):
            print(f"written to {path}")
    return ExitCode(ended) if ended in _BROKEN_OFF else ExitCode.COMPLETED
