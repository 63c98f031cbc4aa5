"""The subcommands: each module or folder adds its parser to the command line and carries out what was parsed.

To keep `pipetrain --help` fast, these modules import what takes time, torch above all, only when they carry it out.
"""

import argparse
from typing import TypeAlias

Subparsers: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"
