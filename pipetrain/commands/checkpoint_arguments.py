"""The arguments that select a checkpoint."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pipetrain.run.finished.selection import Selection


def add_checkpoint_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds RUN, --step, --best and --metric."""
    parser.add_argument("run", type=Path, metavar="RUN", help="a run directory, or a checkpoint in one")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--step", type=int, metavar="K", help="the checkpoint of this step; default the newest")
    which.add_argument("--best", action="store_true", help="the checkpoint with the best metric")
    parser.add_argument("--metric", metavar="NAME", help="the metric of --best; default the run's checkpoint.metric")


def selected_checkpoint(options: argparse.Namespace) -> "Selection":
    """The checkpoint that the arguments select."""
    from pipetrain.run.finished.selection import Selection

    return Selection(options.run, options.step, best=options.best, metric=options.metric)
