"""Arguments that commands have in common."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from pipetrain.runner.training.checkpoint.store import Selection

Subparsers: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"
Flags: TypeAlias = argparse._ActionsContainer
"""A parser, or a group of its flags."""


def add_config_dir(flags: Flags) -> None:
    """Adds `--config-dir`, the folder of the user's own choices."""
    flags.add_argument("-cd", "--config-dir", type=Path, metavar="FOLDER", help="look for choices here as well")


def add_settings_parser(
    subparsers: Subparsers, name: str, example: str, metavar: str = "SETTING", **texts: Any
) -> argparse.ArgumentParser:
    """Adds a command that takes settings of `pipetrain run` among its flags; `texts` go to its help."""
    parser = subparsers.add_parser(name, formatter_class=argparse.RawDescriptionHelpFormatter, **texts)
    parser.add_argument("words", nargs="*", metavar=metavar, help=f"such as {example}")
    add_config_dir(parser)
    parser.set_defaults(parse=parser.parse_intermixed_args, takes_settings=True)
    return parser


def add_checkpoint_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds RUN, --step, --best, --metric and --raw."""
    parser.add_argument("run", type=Path, metavar="RUN", help="a run directory, or a checkpoint in one")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--step", type=int, metavar="K", help="the checkpoint of this step; default the newest")
    which.add_argument("--best", action="store_true", help="the checkpoint with the best metric")
    parser.add_argument("--metric", metavar="NAME", help="the metric of --best; default the run's checkpoint.metric")
    parser.add_argument(
        "--raw", action="store_true", help="use the weights, not averages (train.ema, averaging.average=weights)"
    )


def selected_checkpoint(options: argparse.Namespace) -> "Selection":
    """The checkpoint that the arguments select."""
    from pipetrain.runner.training.checkpoint.store import Selection

    return Selection(options.run, options.step, best=options.best, metric=options.metric, raw=options.raw)
