"""`pipetrain compare`: which method for a model on given machines."""

import argparse
import time
from pathlib import Path

from pipetrain.engine.errors import ConfigError, ExitCode, check_whole, one_line
from pipetrain.runner.terminal.arguments import Subparsers, add_settings_parser
from pipetrain.runner.terminal.output_folder import check_writable

_DESCRIPTION = """\
Takes settings of `pipetrain run`, some with several values. Tunes the learning rate of each combination, simulates it
with fresh seeds, predicts its seconds per step and memory on the topology, and reports which combination reaches a
target first. A second call with the same -o reuses the runs there, so that methods, stages and seeds can be added."""
_EPILOG = """\
For example: pipetrain compare model=lenet5 method=gpipe,pipedream,pipeoptim partition.stages=2,4 -o compared
             pipetrain compare model=gpt method=gpipe,pipemare partition.stages=4 --target loss=2.5 --minutes 30
             pipetrain compare ... --tune optimizer.lr=0.003,0.01,0.03 --tune optimizer.momentum=0.8,0.9"""


def add_parser(subparsers: Subparsers) -> None:
    """Adds `compare`."""
    parser = add_settings_parser(
        subparsers, "compare", "method=gpipe,pipedream partition.stages=2,4",
        help="which method reaches a target first: tune, simulate, predict", description=_DESCRIPTION, epilog=_EPILOG,
    )  # fmt: skip
    parser.add_argument("--target", metavar="METRIC=VALUE", help="compare the time to it, such as top1=80")
    parser.add_argument(
        "--baseline", metavar="METHOD",
        help="the method that slowdowns are relative to; without --target, its training loss after 70 %% of its steps "
        "is the target; default: the first method",
    )  # fmt: skip
    parser.add_argument(
        "--tune", action="append", default=[], metavar="NAME=VALUES",
        help="tune a setting, such as optimizer.betas=[0.9,0.99],[0.9,0.999]; by default only optimizer.lr, from a "
        "third to three times the configured value and further while that helps; may be given several times",
    )  # fmt: skip
    parser.add_argument("--seeds", type=int, default=5, metavar="N", help="number of reported seeds; default 5")
    parser.add_argument("--tuning-seeds", type=int, default=2, metavar="N", help="seeds of each trial; default 2")
    parser.add_argument(
        "--minutes",
        type=float,
        metavar="M",
        help="stop after M minutes from now, with the results so far; start no run that would end later, as far as is "
        "known",
    )
    parser.add_argument("--jobs", type=int, metavar="N", help="runs at a time; default: one on each core")
    parser.add_argument(
        "-o", "--output", type=Path, metavar="DIR", help="folder; default comparison, comparison-2, ..."
    )
    parser.set_defaults(carry_out=carry_out)


def carry_out(options: argparse.Namespace) -> ExitCode:
    """Compares, and prints the table.

    Raises:
        ConfigError: a flag or a setting cannot work; nothing was run.
    """
    began_s = time.monotonic()
    for name in ("seeds", "tuning_seeds", "jobs"):
        if (value := getattr(options, name)) is not None:
            check_whole(f"--{name.replace('_', '-')}", value, 1)
    if options.minutes is not None and not options.minutes > 0:
        raise ConfigError(f"--minutes {options.minutes:g}: must be above 0")
    check_writable(f"-o {options.output or 'comparison'}", options.output or Path("comparison"))
    # from here on torch is needed, which takes seconds to import
    from pipetrain.reporting.comparison.compare import Request, compare
    from pipetrain.reporting.comparison.results import FILES
    from pipetrain.reporting.sweep import sweep_tables
    from pipetrain.reporting.sweep.comparison import target_of

    target = target_of([options.target], slowdown=True) if options.target else {}
    request = Request(
        next(iter(target.items()), None), options.baseline, options.tune, options.seeds, options.tuning_seeds,
        options.minutes, options.jobs, began_s,
    )  # fmt: skip
    found = compare(options.words, request, options.output, options.config_dir)
    print(sweep_tables.text(found.report), "", one_line(f"written to {found.folder}: {', '.join(FILES)}"), sep="\n")
    return ExitCode.FAILED if found.failed else ExitCode.COMPLETED
