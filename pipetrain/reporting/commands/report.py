"""`pipetrain report`: distances between weights, and the runs of a sweep side by side."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pipetrain.engine.errors import ConfigError, ExitCode, one_line
from pipetrain.runner.terminal.arguments import Subparsers
from pipetrain.runner.terminal.output_folder import check_new_file, check_writable

if TYPE_CHECKING:
    from pipetrain.reporting.sweep.compared_run import ComparedRun


def add_parser(subparsers: Subparsers) -> None:
    """Adds `report distances` and `report runs`."""
    text = "tables of distances between weights, or of the runs of a sweep"
    parser = subparsers.add_parser(
        "report",
        help=text,
        description=text,
        epilog="For example: pipetrain report runs multirun/DATE/TIME -o comparison",
    )
    kinds = parser.add_subparsers(metavar="KIND", required=True)
    _add_distances(kinds)
    _add_runs(kinds)


def _add_distances(kinds: Subparsers) -> None:
    text = "distances between weights that runs with log.staleness_every_steps=K measured, by stage"
    parser = kinds.add_parser(
        "distances",
        help=text,
        description=f"{text}; runs that differ only in the seed are averaged. docs/staleness.md defines the columns.",
        epilog="For example: pipetrain report distances multirun/DATE/TIME -o distances.png",
    )
    parser.add_argument("folders", type=Path, nargs="+", metavar="FOLDER", help="a sweep's directory, or several runs")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="also draw them by step, as .png or .svg")
    parser.set_defaults(carry_out=carry_out_distances)


def _add_runs(kinds: Subparsers) -> None:
    text = "the runs of a sweep, or any runs, side by side; runs that differ only in the seed are one row"
    parser = kinds.add_parser(
        "runs",
        help=text,
        description=f"{text}. Accuracy, time, throughput, idle share and memory, best first.",
        epilog="For example: pipetrain report runs multirun/DATE/TIME --target top1=80 -o comparison",
    )
    parser.add_argument("folders", type=Path, nargs="+", metavar="FOLDER", help="a sweep's directory, or several runs")
    parser.add_argument(
        "--metric",
        help="what to rank by: top1, loss, best_top1, samples_per_second, wall_s, memory_bytes, ...; "
        "default: bleu or meteor, or else top1, perplexity or loss",
    )
    parser.add_argument(
        "--target",
        action="append",
        default=[],
        metavar="METRIC=VALUE",
        help="show the wall time until evaluation reached it, such as top1=80; default: the runs' own train.target; "
        "with --baseline, also what slowdowns are to, instead of the baseline's loss; train_loss is possible, too",
    )
    parser.add_argument(
        "--baseline",
        metavar="NAME",
        help="show the slowdown of every row: steps, samples, tokens and time to the loss that row NAME has after "
        "70 %% of its steps, over its own; its name or settings, such as gpipe or method=gpipe",
    )
    parser.add_argument(
        "--by",
        action="append",
        default=[],
        choices=("commit", "host"),
        help="also put runs of different git commits or hosts in different rows; may be given several times",
    )
    parser.add_argument("--json", action="store_true", help="print all numbers of all runs as JSON instead")
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        help="also write OUTPUT.md, .json, .png and .html, a page to look at in a browser; a folder that exists gets "
        "runs.md and so on; without -o only the page of a single FOLDER is written, FOLDER/report.html",
    )
    parser.set_defaults(carry_out=carry_out_runs)


def carry_out_distances(options: argparse.Namespace) -> ExitCode:
    """Prints a table of each configuration, and draws its curves if requested.

    Raises:
        ConfigError: OUTPUT is no file of a figure or cannot be written, or no run measured distances.
    """
    output: Path | None = options.output
    if output is not None:
        if output.suffix not in (".png", ".svg"):
            raise ConfigError(f"-o {output}: the name of a figure ends in .png or .svg")
        check_new_file(f"-o {output}", output, "distances.png", force=True)
    from pipetrain.reporting import distances
    from pipetrain.reporting.sweep.comparison import collect

    found = distances.measured(collect(options.folders, {}).groups)
    print(*distances.tables(found), sep="\n")
    if output is not None:
        distances.draw(output, found)
        print(f"\n{one_line(f'written to {output}')}")
    return ExitCode.COMPLETED


def carry_out_runs(options: argparse.Namespace) -> ExitCode:
    """Prints the tables, and writes them and their figure if requested.

    Raises:
        ConfigError: OUTPUT is in a folder that does not exist, no run can be read, none has a metric, or no row is the
            baseline.
    """
    output = _output_of_runs(options.output)
    from pipetrain.reporting.sweep import comparison, sweep_files, sweep_tables
    from pipetrain.reporting.sweep.compared_run import TRAIN_LOSS
    from pipetrain.reporting.sweep.slowdown import baseline_of

    target = comparison.target_of(options.target, slowdown=options.baseline is not None)
    evaluated = {name: value for name, value in target.items() if name != TRAIN_LOSS}
    found = comparison.collect(options.folders, evaluated, by=options.by)
    if not found.groups:
        raise _nothing_left(found.skipped)
    comparison.check_target(found.groups, evaluated)
    found = comparison.ranked(found, options.metric)
    if options.baseline is not None:
        found = comparison.with_slowdowns(found, baseline_of(found.groups, options.baseline), target)
    print(sweep_files.as_json(found) if options.json else sweep_tables.text(found))
    written = sweep_files.write(found, output) if output else sweep_files.write_page(found, options.folders)
    if written:
        named = one_line(f"written to {', '.join(map(str, written))}")
        print(f"\n{named}", file=sys.stderr if options.json else sys.stdout)
    return ExitCode.COMPLETED


def _nothing_left(damaged: "Sequence[ComparedRun]") -> ConfigError:
    more = len(damaged) - 1
    others = f"; so {'is' if more == 1 else 'are'} {more} more" if more else ""
    return ConfigError(f"{damaged[0].path}: a damaged run: {damaged[0].reason}{others}, and nothing is left to compare")


def _output_of_runs(output: Path | None) -> Path | None:
    """Common prefix of the names of the files.

    Raises:
        ConfigError: their folder does not exist, or cannot be written to.
    """
    from pipetrain.runner.tracking.run_directory import RunDirectory

    if output is None:
        return None
    if output.is_dir():
        output = output / "runs"
    elif output.suffix in (".md", ".json", ".png", ".html"):
        output = output.with_suffix("")
    if not output.parent.is_dir():
        raise ConfigError(f"-o {output}: there is no folder {output.parent}; make it first")
    check_writable(f"-o {output}", output.parent)
    run = RunDirectory(output.parent)
    if run.config.is_file() and output.name in {path.stem for path in (run.summary, run.plan, run.trace)}:
        raise ConfigError(f"-o {output}: {output}.json is a file of the run in {output.parent}; give another name")
    return output
