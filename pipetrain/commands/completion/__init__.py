"""`pipetrain completion SHELL`: the script that makes the Tab key complete commands, flags, settings and choices."""

import argparse

from pipetrain.commands import Subparsers
from pipetrain.commands.completion.scripts import SCRIPTS
from pipetrain.errors import ConfigError, ExitCode

_DESCRIPTION = """\
Prints a script for the shell. To switch completion on in this terminal, or in every one from its start-up file:

  bash  eval "$(pipetrain completion bash)"                in ~/.bashrc
  zsh   eval "$(pipetrain completion zsh)"                 in ~/.zshrc, after compinit
  fish  pipetrain completion fish | source                 in ~/.config/fish/config.fish
"""


def add_parser(subparsers: Subparsers) -> None:
    """Adds `completion`."""
    parser = subparsers.add_parser(
        "completion",
        help="print a script that completes commands and settings in your shell",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("shell", nargs="?", choices=list(SCRIPTS), metavar="SHELL", help=", ".join(SCRIPTS))
    parser.add_argument("--line", help="print what may stand at the end of this command line; the scripts call it")
    parser.set_defaults(carry_out=carry_out, commands=subparsers.choices)


def carry_out(options: argparse.Namespace) -> ExitCode:
    """Prints the script, or the candidates for a line.

    Raises:
        ConfigError: no shell is given.
    """
    if options.line is not None:
        from pipetrain.commands.completion.candidates import candidates

        print(*candidates(options.line, options.commands), sep="\n")
    elif options.shell is None:
        raise ConfigError(f"pipetrain completion: SHELL is missing; choose from {', '.join(SCRIPTS)}")
    else:
        print(SCRIPTS[options.shell], end="")
    return ExitCode.COMPLETED
