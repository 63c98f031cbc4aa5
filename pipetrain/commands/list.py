"""`pipetrain list`: models, methods and so on, a line each, read off the configuration files and the code they name."""

import argparse
import json
from typing import TYPE_CHECKING, Any

from pipetrain.commands import Subparsers
from pipetrain.errors import ExitCode
from pipetrain.report.text_table import text_lines

if TYPE_CHECKING:
    from pipetrain.config.choices import Choice

_GROUPS = {
    "models": "model",
    "datasets": "dataset",
    "methods": "method",
    "schedules": "schedule",
    "experiments": "experiment",
}
"""What is listed -> the configuration group that it is read from."""


def add_parser(subparsers: Subparsers) -> None:
    """Adds `list`."""
    text = "list models, datasets, methods, schedules and experiments"
    parser = subparsers.add_parser("list", help=text, description=text)
    parser.add_argument(
        "kind", nargs="?", choices=list(_GROUPS), metavar="KIND", help=f"{', '.join(_GROUPS)}; default all"
    )
    parser.add_argument("--json", action="store_true", help="machine-readable rows")
    parser.set_defaults(carry_out=carry_out)


def carry_out(options: argparse.Namespace) -> ExitCode:
    """Prints the rows of one kind, or of each."""
    kinds = [options.kind] if options.kind else list(_GROUPS)
    listed = {kind: rows(kind) for kind in kinds}
    if options.json:
        print(json.dumps(listed[kinds[0]] if len(kinds) == 1 else listed, indent=2))
    else:
        _show(listed)
    return ExitCode.COMPLETED


def _show(listed: dict[str, list[dict[str, Any]]]) -> None:
    for kind, rows_of_kind in listed.items():
        lines = text_lines([(row["name"], row["summary"] + _shown_size(row)) for row in rows_of_kind], "<<")
        if len(listed) > 1:
            lines = [f"{kind}:", *(f"  {line}" for line in lines)]
        print(*lines, sep="\n")


def _shown_size(row: dict[str, Any]) -> str:
    return f"  [{row['layers']} layers, {row['parameters']:,} parameters]" if "layers" in row else ""


def rows(kind: str) -> list[dict[str, Any]]:
    """`name` and `summary` of each; of models also `task`, `parameters` and `layers`, for the images of CIFAR-10."""
    from pipetrain.config.choices import choices_of

    return [
        {"name": choice.name, "summary": choice.summary, **(_size(choice) if kind == "models" else {})}
        for choice in choices_of(_GROUPS[kind])
    ]


def _size(choice: "Choice") -> dict[str, Any]:
    import torch

    from pipetrain.config.instantiate import Target
    from pipetrain.run.build import build_chain

    with torch.device("meta"):
        chain = build_chain(Target.of("model", choice.content), _Images(), seed=0)
    parameters = sum(parameter.numel() for parameter in chain.module.parameters())
    return {"task": "images", "parameters": parameters, "layers": len(chain)}


class _Images:
    """What the models are sized for: CIFAR-10."""

    channels, classes, size = 3, 10, (32, 32)
