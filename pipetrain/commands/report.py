"""`pipetrain report`: measured staleness beside its closed forms, and the runs of a sweep side by side."""

import argparse
from pathlib import Path

from pipetrain.commands import Subparsers
from pipetrain.errors import ExitCode
from pipetrain.output_folder import check_writable


def add_parser(subparsers: Subparsers) -> None:
    """Adds `report staleness` and `report runs`."""
    text = "tables of measured staleness, or of the runs of a sweep"
    parser = subparsers.add_parser(
        "report",
        help=text,
        description=text,
        epilog="For example: pipetrain report runs multirun/DATE/TIME -o comparison",
    )
    kinds = parser.add_subparsers(metavar="KIND", required=True)
    _add_staleness(kinds)
    _add_runs(kinds)


def _add_staleness(kinds: Subparsers) -> None:
    text = "small runs of every method: staleness and memory, closed form beside measurement"
    parser = kinds.add_parser("staleness", help=text, description=text)
    parser.add_argument("--stages", type=int, default=4, metavar="D", help="pipeline stages of each run; default 4")
    parser.add_argument(
        "--microbatches",
        type=int,
        default=1,
        metavar="N",
        help="microbatches per minibatch; default 1, and D for pipedream_2bw",
    )
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="also write the rows as JSON")
    parser.set_defaults(carry_out=carry_out_staleness)


def _add_runs(kinds: Subparsers) -> None:
    text = "the runs of a sweep as one table and figure; runs that differ only in the seed are one row"
    parser = kinds.add_parser("runs", help=text, description=text)
    parser.add_argument("folders", type=Path, nargs="+", metavar="FOLDER", help="a sweep's directory, or several runs")
    parser.add_argument("--metric", default="top1", help="the evaluation metric to compare; default top1")
    parser.add_argument("-o", "--output", type=Path, help="write OUTPUT.md, OUTPUT.json and OUTPUT.png")
    parser.set_defaults(carry_out=carry_out_runs)


def carry_out_staleness(options: argparse.Namespace) -> ExitCode:
    """Prints the tables; fails where a measurement differs from its closed form."""
    _check_output(options.output)
    from pipetrain.reproduce.staleness import report

    holds = report(options.stages, options.microbatches, options.output)
    return ExitCode.COMPLETED if holds else ExitCode.FAILED


def carry_out_runs(options: argparse.Namespace) -> ExitCode:
    """Prints the table, and writes it and its figure where asked to."""
    _check_output(options.output)
    from pipetrain.report.sweep.table import report

    report(options.folders, options.metric, options.output)
    return ExitCode.COMPLETED


def _check_output(output: Path | None) -> None:
    if output is not None:
        check_writable(f"-o {output}", output.parent)
