"""`pipetrain list`: models, methods and so on, a line each, read off the configuration files and the code they name."""

import argparse
import json
from typing import Any

from pipetrain.commands import Subparsers
from pipetrain.errors import ConfigError, ExitCode
from pipetrain.report.text_table import text_lines

_GROUPS = {
    "models": "model",
    "datasets": "dataset",
    "methods": "method",
    "schedules": "schedule",
    "partitions": "partition",
    "optimizers": "optimizer",
    "lr_schedules": "lr_schedule",
    "losses": "loss",
    "executors": "executor",
    "experiments": "experiment",
}
"""What is listed -> the configuration group that it is read from."""
_DESCRIPTION = """\
Describes the choices of a group, or of every group, in a line each. A choice is made by GROUP=NAME, such as
method=pipedream; those of your own are made by GROUP=custom GROUP._target_=mylib.Thing."""


def add_parser(subparsers: Subparsers) -> None:
    """Adds `list`."""
    text = "list the choices of every group: models, methods, schedules and so on"
    parser = subparsers.add_parser("list", help=text, description=_DESCRIPTION)
    parser.add_argument(
        "kind", nargs="?", choices=list(_GROUPS), metavar="KIND", help=f"{', '.join(_GROUPS)}; default all"
    )
    parser.add_argument("--json", action="store_true", help="machine-readable rows")
    parser.add_argument(
        "--sizes", action="store_true", help="also the layers and parameters of models, which takes seconds to find"
    )
    parser.set_defaults(carry_out=carry_out)


def carry_out(options: argparse.Namespace) -> ExitCode:
    """Prints the rows of one kind, or of each.

    Raises:
        ConfigError: sizes are asked for of what has none.
    """
    kinds = [options.kind] if options.kind else list(_GROUPS)
    if options.sizes and "models" not in kinds:
        raise ConfigError(f"--sizes: {options.kind} have none; pipetrain list models --sizes")
    listed = {kind: rows(kind, sizes=options.sizes) for kind in kinds}
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


def rows(kind: str, *, sizes: bool) -> list[dict[str, Any]]:
    """`name` and `summary` of each; with `sizes` of models `task`, `parameters` and `layers`, for CIFAR-10's images."""
    from pipetrain.config.choices import choices_of

    return [
        {"name": choice.name, "summary": choice.summary, **(_size(choice.name) if sizes and kind == "models" else {})}
        for choice in choices_of(_GROUPS[kind])
    ]


def _size(name: str) -> dict[str, Any]:
    import torch

    from pipetrain.config.choices import section
    from pipetrain.config.instantiate import Target
    from pipetrain.run.build import build_chain

    with torch.device("meta"):
        chain = build_chain(Target.of("model", section("model", name)), _Images(), seed=0)
    parameters = sum(parameter.numel() for parameter in chain.module.parameters())
    return {"task": "images", "parameters": parameters, "layers": len(chain)}


class _Images:
    """What the models are sized for: CIFAR-10."""

    channels, classes, size = 3, 10, (32, 32)
