"""The `pipetrain` command: finds the subcommand, and ends with its exit code."""

import argparse
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import NoReturn

from typing_extensions import override

from pipetrain import __version__
from pipetrain.commands.standard_streams import lost_output, make_lenient, show_warnings_once
from pipetrain.engine import outer_launcher
from pipetrain.engine.errors import ConfigError, DataError, ExitCode, InterruptedRunError, PreemptedError
from pipetrain.runner.launch.signals import Interruption, handle_from_now_on, ignore_from_now_on
from pipetrain.runner.terminal.arguments import Subparsers

_COMMANDS = (
    "commands.run", "commands.list", "commands.evaluate", "commands.export", "reporting.commands.timeline",
    "planning.commands.profile", "planning.commands.plan", "reporting.commands.compare", "reporting.commands.report",
    "commands.doctor", "commands.completion",
)  # fmt: skip
"""Modules of the package, imported once signals are handled; those of a room that is not installed are left out."""
_ELSEWHERE = {"train": "run", "fit": "run", "evaluate": "eval", "test": "eval", "predict": "plan"}
"""Name of a command in other programs -> name here."""
_EPILOG = """\
For example: pipetrain run method=pipedream model=resnet56 partition.stages=4
Completion:  eval "$(pipetrain completion bash)", or zsh, fish
Exit codes:  0 completed, 1 failed, 2 wrong usage or configuration, 3 diverged, 130 interrupted,
             75 ended by SIGTERM or SIGUSR1: queue it again with resume=auto
"""


@dataclass(frozen=True)
class Program:
    """A command line with subcommands, whose parsers `add_parsers` adds."""

    prog: str
    description: str
    epilog: str
    add_parsers: Callable[[Subparsers], None]


def _add_parsers(subparsers: Subparsers) -> None:
    for name in _COMMANDS:
        if find_spec(f"pipetrain.{name.partition('.')[0]}") is not None:
            import_module(f"pipetrain.{name}").add_parser(subparsers)


PIPETRAIN = Program(
    "pipetrain",
    "Trains neural networks with pipeline parallelism, and measures what each stage does.",
    _EPILOG,
    _add_parsers,
)


def main(program: Program = PIPETRAIN) -> None:
    """Entry point; ends the process with an ExitCode."""
    interruption = handle_from_now_on()  # first: the rest takes a while to import
    if outer_launcher.is_present():  # torch warns of names without addresses, and with a stack of each lost connection
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    words = sys.argv[1:]
    try:
        make_lenient()
        show_warnings_once()
        code = carry_out(words, program)
        interruption.settle()
    except KeyboardInterrupt as error:
        code = _interrupted(interruption, error)
    if (lost := lost_output()) is not None:
        print(f"pipetrain: error: {lost}", file=sys.stderr, flush=True)
        if code is ExitCode.COMPLETED and words[:1] != ["run"]:  # a run leaves its results in its directory
            code = ExitCode.FAILED

    from pipetrain.runner.launch.process_exit import exit_despite_user_threads, exit_now

    if outer_launcher.is_present():  # under torchrun, a connection of torch's that still closes would abort the process
        exit_now(code)
    exit_despite_user_threads(code)
    ignore_from_now_on()
    sys.exit(code)


def _interrupted(interruption: Interruption, error: KeyboardInterrupt) -> ExitCode:
    interruption.settle()
    # Python remembers a KeyboardInterrupt that left an `exec` of text, such as that of a dataclass, until the next one,
    # and `python -m` would end by SIGINT instead of with the exit code
    exec("")
    if not isinstance(error, InterruptedRunError) and outer_launcher.leads():
        print("pipetrain: interrupted" + (f" by {error}" if str(error) else ""), file=sys.stderr, flush=True)
    preempted = interruption.preempts or isinstance(error, PreemptedError)
    return ExitCode.PREEMPTED if preempted else ExitCode.INTERRUPTED


def carry_out(words: Sequence[str], program: Program = PIPETRAIN) -> ExitCode:
    """Carries out the subcommand that `words` begin with; a user's errors are shown, not raised."""
    parser, commands = _parsers(program)
    if not words:
        parser.print_help()
        return ExitCode.WRONG_USAGE
    if words[0].startswith("-"):
        parser.parse_args(words)  # --help and --version end the process, as a wrong flag does
    # --help needs no Hydra, which takes a while to import
    from pipetrain.runner.config.hydra_errors import CONFIGURATION_ERRORS
    from pipetrain.runner.terminal.error_line import report_error

    try:
        if words[0] not in commands:
            from pipetrain.runner.config.suggestions import unknown_choice

            raise ConfigError(f"{words[0]}: {unknown_choice('command', words[0], [*commands], _ELSEWHERE)}")
        command = commands[words[0]]
        parse = command.get_default("parse") or command.parse_args
        options = parse(words[1:])
        code: ExitCode = options.carry_out(options)
    except (ConfigError, DataError, *CONFIGURATION_ERRORS) as error:
        return report_error(error, ExitCode.WRONG_USAGE)
    except OSError as error:
        return report_error(error, ExitCode.FAILED)
    return code


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are one line, like all errors of ours."""

    @override
    def error(self, message: str) -> NoReturn:
        self.exit(ExitCode.WRONG_USAGE, f"pipetrain: error: {message}; {self.prog} --help shows what it takes\n")


def _parsers(program: Program = PIPETRAIN) -> tuple[argparse.ArgumentParser, Mapping[str, argparse.ArgumentParser]]:
    """The parser of the whole command, and the parsers of the subcommands by name."""
    parser: argparse.ArgumentParser = _Parser(
        prog=program.prog,
        description=program.description,
        epilog=program.epilog,
        formatter_class=lambda prog: argparse.RawDescriptionHelpFormatter(prog, max_help_position=16),
    )
    parser.add_argument("--version", action="version", version=f"pipetrain {__version__}")
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    program.add_parsers(subparsers)
    return parser, subparsers.choices
