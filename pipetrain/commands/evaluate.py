"""`pipetrain eval RUN`: evaluates a checkpoint of a run."""

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipetrain.engine.errors import ConfigError, ExitCode, one_line
from pipetrain.engine.failure import USERS_ERRORS
from pipetrain.runner.terminal.arguments import Subparsers, add_checkpoint_arguments, selected_checkpoint
from pipetrain.runner.terminal.output_folder import check_new_file
from pipetrain.runner.terminal.text_table import printable, text_lines

if TYPE_CHECKING:
    from pipetrain.runner.training.finished.evaluate import Evaluation

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
    from pipetrain.data.files import strict_json
    from pipetrain.runner.terminal.error_line import report_error
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


def evaluation_lines(evaluation: "Evaluation") -> list[str]:
    """The lines of a table: the checkpoint, the model and the data, and a line for each metric."""
    rows = [
        ("checkpoint", one_line(str(evaluation.checkpoint))),
        ("step", str(evaluation.step)),
        ("model", evaluation.model),
        ("dataset", f"{evaluation.dataset}, {evaluation.samples:,} samples"),
    ]
    if evaluation.weights is not None:
        rows.insert(2, ("weights", evaluation.weights))
    for name, value in evaluation.metrics.items():
        rows.append((name, f"{value:.4g}" if name in ("loss", "perplexity") else f"{value:.4g} %"))
    for name, value in evaluation.others.items():
        signature = evaluation.signatures.get(name)
        rows.append((name, f"{value:.4g}" if signature is None else f"{value:.4g}  ({signature})"))
    return [printable(line) for line in text_lines(rows, "<<")]


def evaluation_json(evaluation: "Evaluation") -> dict[str, Any]:
    """The evaluation as a JSON object, with `metrics` as in metrics.jsonl."""
    return {
        "checkpoint": str(evaluation.checkpoint),
        "step": evaluation.step,
        "weights": evaluation.weights,
        "model": evaluation.model,
        "dataset": evaluation.dataset,
        "samples": evaluation.samples,
        "metrics": {**evaluation.metrics, **evaluation.others},
        "signatures": dict(evaluation.signatures),
    }


def evaluation_texts(evaluation: "Evaluation") -> str:
    """A line of JSON for each generated text, with its references."""
    lines = ({"text": text, "references": list(references)} for text, references in evaluation.texts)
    return "".join(f"{json.dumps(line, ensure_ascii=False)}\n" for line in lines)
