"""`pipetrain predict`: how fast a pipeline will be, and how much memory it will take, before it runs."""

import argparse
import json
from pathlib import Path

from pipetrain.engine.errors import ExitCode
from pipetrain.runner.terminal.arguments import Subparsers, add_settings_parser
from pipetrain.runner.terminal.output_folder import check_writable

_DESCRIPTION = """\
With settings of `pipetrain run`: simulates the operation lists that such a run would execute with the times of the
model's profile and the links of the topology, and prints time per minibatch, idle shares, traffic and memory of the
steady state. A sweep, such as method=a,b partition.stages=2,4, is compared. With profile=FILE nothing is measured.
Writes prediction.png and prediction.json."""
_EPILOG = """\
For example: pipetrain predict model=resnet56 method=gpipe,pipedream,pipeoptim partition.stages=2,4
             pipetrain predict profile=profile.json partition.stages=4 topology.gigabytes_per_s=[1.25]"""


def add_parser(subparsers: Subparsers) -> None:
    """Adds `predict`."""
    parser = add_settings_parser(
        subparsers, "predict", "method=pipedream partition.stages=4",
        help="how fast pipelines will be, and how much memory they take", description=_DESCRIPTION, epilog=_EPILOG,
    )  # fmt: skip
    parser.add_argument("-o", "--output", type=Path, help="directory; default prediction, prediction-2, ...")
    parser.set_defaults(carry_out=carry_out)


def carry_out(options: argparse.Namespace) -> ExitCode:
    """Predicts, prints the tables and draws.

    Raises:
        ConfigError: a setting cannot work, or a pipeline cannot be predicted.
    """
    from pipetrain.runner.config.composition import with_choices_of

    words = with_choices_of(options.config_dir, options.words)
    output: Path = options.output or Path("prediction")
    check_writable(f"-o {output}", output)
    # from here on torch is needed, which takes seconds to import
    from pipetrain.planning.tables import prediction_figure
    from pipetrain.planning.tables.prediction_tables import cases, comparison_table, stage_table, to_json
    from pipetrain.runner.tracking.files import new_folder, write_whole

    every = list(cases(words))
    print(*comparison_table(every), sep="\n")
    if len(every) == 1:
        print("", *stage_table(every[0].prediction), sep="\n")
    if options.output is None:
        output = new_folder(output)
    output.mkdir(parents=True, exist_ok=True)
    left_out = prediction_figure.draw(output / "prediction.png", every)
    write_whole(output / "prediction.json", json.dumps(to_json(every), indent=1) + "\n")
    print(*filter(None, [f"written to {output}: prediction.png, prediction.json", left_out]), sep="\n")
    return ExitCode.COMPLETED
