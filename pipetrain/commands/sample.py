"""`pipetrain sample RUN`: prints text that a language model makes up."""

import argparse
import sys
import unicodedata

from pipetrain.commands import Subparsers, add_checkpoint_arguments, selected_checkpoint
from pipetrain.errors import ConfigError, ExitCode, one_line
from pipetrain.failure import USERS_ERRORS

_DESCRIPTION = """\
Prints a text that the language model of a checkpoint goes on with, a token at a time. The same seed gives the same
text. Settings of dataset and model, device and threads may be changed."""
_EPILOG = """\
For example: pipetrain sample outputs/DATE/TIME --best --prompt "It is a truth" --length 100
             pipetrain sample outputs/DATE/TIME device=cpu"""


def add_parser(subparsers: Subparsers) -> None:
    """Adds `sample`."""
    parser = subparsers.add_parser(
        "sample",
        help="print text that a language model makes up",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_checkpoint_arguments(parser)
    parser.add_argument(
        "overrides", nargs="*", metavar="SETTING", help="settings to change, such as dataset.root=/data device=cpu"
    )
    parser.add_argument("--prompt", default="", metavar="TEXT", help="how the text begins; default a new line")
    parser.add_argument("--length", type=int, default=200, metavar="N", help="tokens to add; default 200")
    parser.add_argument(
        "--temperature", type=float, default=0.8, metavar="T", help="0: always the likeliest token; default 0.8"
    )
    parser.add_argument("--top-k", type=int, metavar="K", help="choose among the K likeliest tokens; default all")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="of the draws; default 0")
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error in the code of RUN")
    parser.add_argument("--trust", action="store_true", help="call code that RUN names and pipetrain does not bring")
    parser.set_defaults(parse=parser.parse_intermixed_args, carry_out=carry_out, takes_settings=True)


def carry_out(options: argparse.Namespace) -> ExitCode:
    """Prints the text as it is found; errors of the user's own code are shown, not raised.

    Raises:
        ConfigError: there is no such run or checkpoint, it is of no language model, a setting is wrong, or a number
            is out of its range.
    """
    from pipetrain.config.hydra_errors import CONFIGURATION_ERRORS
    from pipetrain.tracking.stored_settings import parse_overrides

    overrides = parse_overrides(options.overrides)
    # from here on torch is needed, which takes seconds to import
    from pipetrain.report.error_line import report_error
    from pipetrain.training.finished.sample import Sampling, sample

    sampling = Sampling(options.length, options.temperature, options.top_k, options.seed)
    try:
        selected = selected_checkpoint(options)
        weights, pieces = sample(selected, options.prompt, sampling, overrides, trust=options.trust)
        if weights is not None:
            print(f"weights: {one_line(weights)}", file=sys.stderr, flush=True)
        for piece in pieces:
            print(_shown(piece), end="", flush=True)
    except (ConfigError, OSError, *CONFIGURATION_ERRORS):
        raise
    except USERS_ERRORS as error:  # of the user's own data set or model
        return report_error(error, ExitCode.FAILED, debug=options.debug)
    print()
    return ExitCode.COMPLETED


def _shown(text: str) -> str:
    """The text without control characters, which the model of an untrusted run may write, but with its white space."""
    return "".join("?" if unicodedata.category(c) == "Cc" and not c.isspace() else c for c in text)
