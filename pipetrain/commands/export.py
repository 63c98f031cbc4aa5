"""`pipetrain export RUN -o FILE`: writes the weights of a run as a plain state dict."""

import argparse
from pathlib import Path

from pipetrain.engine.errors import ExitCode
from pipetrain.runner.terminal.arguments import Subparsers, add_checkpoint_arguments, selected_checkpoint
from pipetrain.runner.terminal.output_folder import check_new_file

_FORMATS = ("torch", "safetensors")
_DESCRIPTION = """\
Writes the weights and buffers of a checkpoint under the names of the model's own module, for torch.load or for
safetensors. No code that RUN names is called."""
_EPILOG = "For example: pipetrain export outputs/DATE/TIME --best -o weights.safetensors"


def add_parser(subparsers: Subparsers) -> None:
    """Adds `export`."""
    parser = subparsers.add_parser(
        "export", help="write the weights of a run as a plain state dict", description=_DESCRIPTION, epilog=_EPILOG
    )
    add_checkpoint_arguments(parser)
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="FILE", help="file to write")
    parser.add_argument("--format", choices=_FORMATS, help="default: by the extension of FILE; an unknown one needs it")
    parser.add_argument("--force", action="store_true", help="replace FILE if it exists")
    parser.set_defaults(carry_out=carry_out)


def carry_out(options: argparse.Namespace) -> ExitCode:
    """Writes the file, and describes its content.

    Raises:
        ConfigError: there is no such run or checkpoint, or FILE cannot be there.
    """
    from pipetrain.runner.training.finished.export import export, format_of

    file_format = options.format or format_of(options.output)
    check_new_file(f"-o {options.output}", options.output, "weights.pt", force=options.force)
    print(export(selected_checkpoint(options), options.output, file_format))
    return ExitCode.COMPLETED
