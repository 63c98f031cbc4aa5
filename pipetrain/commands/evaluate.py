"""`pipetrain eval RUN`: evaluates a checkpoint of a run."""

import argparse
from pathlib import Path

from pipetrain.commands import Subparsers
from pipetrain.errors import ExitCode


def add_parser(subparsers: Subparsers) -> None:
    """Adds `eval`."""
    parser = subparsers.add_parser("eval", help="evaluate a checkpoint of a run")
    parser.add_argument("run", type=Path, metavar="RUN", help="a run directory")
    parser.add_argument(
        "overrides", nargs="*", metavar="OVERRIDE", help="settings to change, such as dataset.root=/data device=cpu"
    )
    parser.add_argument("--step", type=int, help="the checkpoint of this step; default the newest")
    parser.set_defaults(parse=parser.parse_intermixed_args, carry_out=carry_out, takes_settings=True)


def carry_out(options: argparse.Namespace) -> ExitCode:
    """Prints the metrics as one line of JSON."""
    from pipetrain.run.evaluate import evaluate

    evaluate(options.run, options.step, options.overrides)
    return ExitCode.COMPLETED
