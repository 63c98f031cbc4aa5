"""`pipetrain profile`: what each layer of a model costs on this machine."""

import argparse
import json
from pathlib import Path

from pipetrain.engine.errors import ExitCode
from pipetrain.runner.terminal.arguments import Subparsers, add_settings_parser
from pipetrain.runner.terminal.output_folder import check_new_file

_DESCRIPTION = """\
Measures each layer's forward and backward time, output, weights and activations, and the bandwidth between two
workers, under the settings of `pipetrain run`, and writes them as JSON: what `pipetrain plan` and
partition=auto plan with.
With profile=FILE: shows that profile, which may be a graph.txt of PipeDream's, and with -o writes it as JSON."""
_EPILOG = """\
For example: pipetrain profile model=resnet56 train.batch_size=128 -o resnet56.json
             pipetrain profile model=gpt2 train.precision=bf16 device=cuda planner.bandwidth=false
             pipetrain profile profile=graph.txt"""
_DEFAULT = "profile.json"


def add_parser(subparsers: Subparsers) -> None:
    """Adds `profile`."""
    parser = add_settings_parser(
        subparsers, "profile", "model=resnet56 train.batch_size=128",
        help="measure what each layer of a model costs here", description=_DESCRIPTION, epilog=_EPILOG,
    )  # fmt: skip
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help=f"file to write; default {_DEFAULT}")
    parser.add_argument("--force", action="store_true", help="replace FILE if it exists")
    parser.set_defaults(carry_out=carry_out)


def carry_out(options: argparse.Namespace) -> ExitCode:
    """Measures, or reads, and shows the table.

    Raises:
        ConfigError: a setting cannot work, the file exists already, or the profile is not valid.
    """
    from pipetrain.planning.commands.plan import chosen_profile
    from pipetrain.planning.tables.profile_table import profile_table
    from pipetrain.runner.config.composition import composed_one
    from pipetrain.runner.tracking.files import write_whole

    settings = composed_one(options.words, options.config_dir)
    output: Path | None = options.output or (None if settings.profile else Path(_DEFAULT))
    if output is not None:
        check_new_file(f"-o {output}", output, _DEFAULT, force=options.force)
    profile = chosen_profile(settings)
    print(*profile_table(profile, f"layers, in {output or settings.profile}"), sep="\n")
    if output is not None:
        write_whole(output, json.dumps(profile.to_json(), indent=1) + "\n")
        print(f"written to {output}")
    return ExitCode.COMPLETED
