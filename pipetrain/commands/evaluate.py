"""`pipetrain eval RUN`: evaluates a checkpoint of a run."""

import argparse
from pathlib import Path

from pipetrain.engine.errors import ConfigError, ExitCode
from pipetrain.engine.failure import USERS_ERRORS
from pipetrain.runner.terminal.arguments import Subparsers, add_checkpoint_arguments, selected_checkpoint
from pipetrain.runner.terminal.output_folder import check_new_file

_DESCRIPTION = """\
Evaluates a checkpoint of a run on its evaluation set, in this process. Settings that an evaluation reads may be
changed: dataset, model, loss, metrics, device, threads, and of eval the size of batches and how texts are generated."""
_EPILOG = """\
For example: pipetrain eval outputs/DATE/TIME --best
             pipetrain eval outputs/DATE/TIME dataset=fashion_mnist dataset.root=/data
             pipetrain eval outputs/DATE/TIME eval.beam_width=1 --texts greedy.jsonl"""


def add_parser(subparsers: Subparsers) -> None:
    """Adds `eval`."""
    parser = subparsers.add_parser(
        "eval",
        help="evaluate a checkpoint of a run",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_checkpoint_arguments(parser)
    parser.add_argument(
        "overrides", nargs="*", metavar="SETTING", help="settings to change, such as dataset.root=/data device=cpu"
    )
    parser.add_argument("--texts", type=Path, metavar="FILE", help="write the generated texts with their references")
    parser.add_argument("--json", action="store_true", help="print one line of JSON in place of a table")
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error in the code of RUN")
    parser.add_argument("--trust", action="store_true", help="call code that RUN names and pipetrain does not bring")
    parser.set_defaults(parse=parser.parse_intermixed_args, carry_out=carry_out, takes_settings=True)


def carry_out(options: argparse.Namespace) -> ExitCode:
    """Prints the metrics; errors of the user's own code are shown, not raised.

    Raises:
        ConfigError: there is no such run or checkpoint, or a setting is wrong.
    """
    from pipetrain.runner.config.hydra_errors import CONFIGURATION_ERRORS
    from pipetrain.runner.tracking.stored_settings import parse_overrides

    overrides = parse_overrides(options.overrides)
    texts: Path | None = options.texts
    if texts is not None:
        if texts.exists():
            raise ConfigError(f"--texts {texts}: exists; name a new file")
        check_new_file(f"--texts {texts}", texts, "texts.jsonl", force=True)
    # from here on torch is needed, which takes seconds to import
    from pipetrain.engine.files import strict_json
    from pipetrain.runner.terminal.error_line import report_error
    from pipetrain.runner.terminal.run_tables import evaluation_json, evaluation_lines, evaluation_texts
    from pipetrain.runner.tracking.files import write_whole
    from pipetrain.runner.training.finished.evaluate import evaluate

    try:
        evaluation = evaluate(selected_checkpoint(options), overrides, trust=options.trust)
    except (ConfigError, OSError, *CONFIGURATION_ERRORS):
        raise
    except USERS_ERRORS as error:  # of the user's own data set, model or loss
        return report_error(error, ExitCode.FAILED, debug=options.debug)
    print(strict_json.dumps(evaluation_json(evaluation)) if options.json else "\n".join(evaluation_lines(evaluation)))
    if texts is not None:
        if not evaluation.texts:
            raise ConfigError(f"--texts {texts}: this evaluation generates none: see docs/metrics.md")
        write_whole(texts, evaluation_texts(evaluation))
    return ExitCode.COMPLETED
