"""`pipetrain stability`: stable step sizes in theory, PipeMare's lemmas checked, its figures."""

import argparse
from pathlib import Path

from pipetrain.commands import Subparsers
from pipetrain.commands.output_folder import check_writable
from pipetrain.errors import ConfigError, ExitCode

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
"""Fields of the theory's Setting, whose defaults these are."""


def add_parser(subparsers: Subparsers) -> None:
    """Adds `stability`."""
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
    parser.set_defaults(carry_out=carry_out)


def carry_out(options: argparse.Namespace) -> ExitCode:
    """Prints the tables and draws the figures; fails where the check of a lemma does.

    Raises:
        ConfigError: an option is out of its range, the data cannot be read, or the output is no directory to write to.
    """
    if options.iterations < 1:
        raise ConfigError(f"--iterations {options.iterations}: must be 1 or more")
    output: Path | None = options.output
    check_writable(f"-o {output or 'stability'}", output or Path("stability"))
    from pipetrain.report.stability.report import report
    from pipetrain.theory.stability.tables import Setting

    fields = (name.removeprefix("--").replace("-", "_") for name, *_ in _SETTING)
    setting = Setting(**{name: getattr(options, name) for name in fields if hasattr(options, name)})
    holds = report(setting, options.data, options.iterations, output)
    return ExitCode.COMPLETED if holds else ExitCode.FAILED
