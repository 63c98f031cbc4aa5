"""`pipetrain export RUN -o FILE`: writes the weights of a run as a plain state dict."""

import argparse
from pathlib import Path

from pipetrain.commands import Subparsers
from pipetrain.errors import ExitCode


def add_parser(subparsers: Subparsers) -> None:
    """Adds `export`."""
    parser = subparsers.add_parser("export", help="write the weights of a run as a plain state dict")
    parser.add_argument("run", type=Path, metavar="RUN", help="a run directory")
    parser.add_argument("--step", type=int, help="the checkpoint of this step; default the newest")
    parser.add_argument(
        "-o", "--output", type=Path, required=True, metavar="FILE", help="file to write with torch.save"
    )
    parser.set_defaults(carry_out=carry_out)


def carry_out(options: argparse.Namespace) -> ExitCode:
    """Writes the file, and says what it holds."""
    from pipetrain.run.export import export

    export(options.run, options.step, options.output)
    return ExitCode.COMPLETED
