"""`python -m papers`: the experiments of nine papers, their pages, their closed forms, and PipeMare's theory."""

import argparse
from pathlib import Path

from pipetrain import cli
from pipetrain.engine.errors import ConfigError, ExitCode
from pipetrain.runner.terminal.arguments import Subparsers
from pipetrain.runner.terminal.output_folder import check_new_file, check_writable

_REPRODUCE = """\
Runs the presets of an experiment, a table, a figure or a whole paper as sweeps, one after another, cheapest first, and
stores the measurements, their figure, the command, versions, seeds, time and kind of machine. Failed sweeps are listed
at the end. A second call continues where the first was interrupted. The map and the slowdowns are run in rounds, the
most informative first. A round of these is not run again if all of its results are stored."""
_SETTING = (
    ("--curvature", float, "λ, the curvature of the quadratic; default 1"),
    (
        "--discrepancy",
        float,
        "Δ, how strongly gradients feel weights that differ between forward and backward; default 5",
    ),
    ("--tau-forward", int, "τ_F, the delay of the forward in updates; default 40"),
    ("--tau-backward", int, "τ_B, the delay of the backward in updates; default 10"),
    (
        "--tau-recompute",
        int,
        "τ_R, the delay of the recomputation in updates; default a third of the way from τ_B to τ_F",
    ),
    ("--recompute-ratio", float, "Φ/Δ, the same for recomputation, as a share of Δ; default -0.5"),
    ("--momentum", float, "β, the share of the last step that is kept; default 0.9"),
    ("--decay", float, "D, the decay of the discrepancy correction T2; default that of eq. 14"),
)
"""Options of the theory; `Setting` has the defaults."""


def main() -> None:
    """Entry point; ends the process with an ExitCode."""
    cli.main(PROGRAM)


def _add_parsers(subparsers: Subparsers) -> None:
    _add_reproduce(subparsers)
    _add_pages(subparsers)
    _add_at_size(subparsers)
    _add_staleness(subparsers)
    _add_stability(subparsers)


def _add_reproduce(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "reproduce",
        help="run the papers' experiments and keep their results",
        description=_REPRODUCE,
        epilog="For example: python -m papers reproduce zhang/table2_resnet20 --scale small",
    )
    parser.add_argument(
        "name",
        metavar="NAME",
        help="for example pipeoptim, pipeoptim/table4, zhang/table2_resnet20, map, messages, or papers for all",
    )
    parser.add_argument("--scale", default="small", help="small (default): minutes on two cores; full: the paper's")
    parser.add_argument(
        "--untimed", action="store_true", help="discard times and throughput, if the machine is shared with other work"
    )
    parser.add_argument("--list", action="store_true", help="print the commands and run none")
    parser.add_argument(
        "--outputs", type=Path, default=Path("outputs/reproduce"), metavar="FOLDER", help="for the runs"
    )
    parser.add_argument("-o", "--output", type=Path, default=Path("results"), metavar="FOLDER", help="for the results")
    parser.set_defaults(carry_out=_reproduce)


def _reproduce(options: argparse.Namespace) -> ExitCode:
    from papers.reproduce import reproduce

    return reproduce(options)


def _add_pages(subparsers: Subparsers) -> None:
    text = "write a page for each paper: its claims as a figure, its curves, and the evidence as tables"
    parser = subparsers.add_parser(
        "pages", help=text, description=text, epilog="For example: python -m papers pages pipemare -o pages"
    )
    parser.add_argument(
        "names",
        nargs="*",
        metavar="PAPER",
        help="pipeoptim, ..., map, slowdown, v_shaped or messages; default all",
    )
    parser.add_argument(
        "--results",
        type=Path,
        default=Path("results"),
        metavar="FOLDER",
        help="with published/; tables of each paper are written to it, too; default results",
    )
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        default=Path("docs/reproduction"),
        metavar="FOLDER",
        help="for the pages; default docs/reproduction",
    )
    parser.add_argument(
        "--all", action="store_true", help="also the tables, numbers, figure and page of every experiment, in --outputs"
    )
    parser.add_argument(
        "--outputs",
        type=Path,
        default=Path("outputs/results"),
        metavar="FOLDER",
        help="of --all; default outputs/results",
    )
    parser.set_defaults(carry_out=_pages)


def _pages(options: argparse.Namespace) -> ExitCode:
    check_writable(f"-o {options.output}", options.output)
    from papers.pages import write_pages
    from papers.sweeps import write_sweeps

    for path in write_pages(options.names, options.results, options.output):
        print(f"written to {path}")
    if options.all:
        check_writable(f"--outputs {options.outputs}", options.outputs)
        for path in write_sweeps(options.names, options.results, options.outputs):
            print(f"written to {path}")
    return ExitCode.COMPLETED


def _add_at_size(subparsers: Subparsers) -> None:
    text = "judge the runs of scripts/gpu_reproduction.sh, which have a paper's network and data"
    parser = subparsers.add_parser("at-size", help=text, description=text)
    parser.add_argument(
        "folder", type=Path, metavar="FOLDER", help="of the runs, such as outputs/gpu_reproduction/runs"
    )
    parser.set_defaults(carry_out=_at_size)


def _at_size(options: argparse.Namespace) -> ExitCode:
    from papers.at_size import report

    print(*report(options.folder), sep="\n")
    return ExitCode.COMPLETED


def _add_staleness(subparsers: Subparsers) -> None:
    text = "small runs of the methods with a closed form: staleness and memory, closed form beside measurement"
    parser = subparsers.add_parser("staleness", help=text, description=text)
    parser.add_argument("--stages", type=int, default=4, metavar="D", help="pipeline stages of each run; default 4")
    parser.add_argument(
        "--microbatches",
        type=int,
        default=1,
        metavar="N",
        help="microbatches per minibatch; default 1, and D for pipedream_2bw",
    )
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="also write the rows as JSON")
    parser.set_defaults(carry_out=_staleness)


def _staleness(options: argparse.Namespace) -> ExitCode:
    if options.output is not None:
        check_new_file(f"-o {options.output}", options.output, "staleness.json", force=True)
    from papers.staleness import report

    holds = report(options.stages, options.microbatches, options.output)
    return ExitCode.COMPLETED if holds else ExitCode.FAILED


def _add_stability(subparsers: Subparsers) -> None:
    text = "stable step sizes in theory, with PipeMare's figures"
    description = (
        "Prints the largest stable step sizes of PipeMare's quadratic model, checks its lemmas, and draws its figs "
        "5, 6, 10 and 16. The options set the model of the tables; the figures keep the paper's."
    )
    parser = subparsers.add_parser("stability", help=text, description=description)
    for name, kind, meaning in _SETTING:
        parser.add_argument(name, type=kind, metavar="X", default=argparse.SUPPRESS, help=meaning)
    parser.add_argument("--data", type=Path, metavar="FILE", help="cpusmall in LIBSVM format, plain or .gz: fig. 5(b)")
    parser.add_argument(
        "--iterations",
        type=int,
        default=1_000_000,
        metavar="COUNT",
        help="steps of the run of fig. 5(b); default 1,000,000",
    )
    parser.add_argument("-o", "--output", type=Path, help="directory; default stability, stability-2, ...")
    parser.set_defaults(carry_out=_stability)


def _stability(options: argparse.Namespace) -> ExitCode:
    if options.iterations < 1:
        raise ConfigError(f"--iterations {options.iterations}: must be 1 or more")
    output: Path | None = options.output
    check_writable(f"-o {output or 'stability'}", output or Path("stability"))
    from papers.stability.report import report
    from papers.stability.tables import Setting

    fields = (name.removeprefix("--").replace("-", "_") for name, *_ in _SETTING)
    setting = Setting(**{name: getattr(options, name) for name in fields if hasattr(options, name)})
    holds = report(setting, options.data, options.iterations, output)
    return ExitCode.COMPLETED if holds else ExitCode.FAILED


PROGRAM = cli.Program(
    "python -m papers",
    "Runs the experiments of nine papers on pipeline parallelism and compares printed with measured numbers.",
    "For example: python -m papers reproduce zhang/table2_resnet20\n             python -m papers pages zhang",
    _add_parsers,
)
