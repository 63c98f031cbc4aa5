"""The subcommands: each module or folder adds its parser to the command line and carries out what was parsed.

To keep `pipetrain --help` fast, these modules import what takes time, torch above all, only when they carry it out.
"""

import argparse
from pathlib import Path
from typing import TypeAlias

Subparsers: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"
Flags: TypeAlias = argparse._ActionsContainer
"""A parser, or a group of its flags."""


def add_config_dir(flags: Flags) -> None:
    """Adds `--config-dir`, the folder of the user's own choices."""
    flags.add_argument("-cd", "--config-dir", type=Path, metavar="FOLDER", help="look for choices here as well")
