"""`pipetrain list`: the choices of each group, from the configuration files and the code that they name."""

import argparse
import json
import shutil
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipetrain.engine.errors import ConfigError, DataError, ExitCode
from pipetrain.runner.terminal.arguments import Subparsers, add_config_dir
from pipetrain.runner.terminal.text_table import text_lines

if TYPE_CHECKING:
    from pipetrain.runner.config.choices import Choice

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
    "messages": "message",
    "experiments": "experiment",
}
"""Kind on the command line -> configuration group."""
_NARROWEST = 40
_OF_EXPERIMENTS = ("paper", "cost", "small", "minutes")
_DESCRIPTION = """\
Describes the choices of a group, or of every group, in a line each. A choice is made by GROUP=NAME, such as
method=pipedream; those of your own are made by GROUP=custom GROUP._target_=mylib.Thing, or by
GROUP=NAME once a package that brings them is installed."""


def add_parser(subparsers: Subparsers) -> None:
    """Adds `list`."""
    text = "list the choices of every group: models, methods, schedules and so on"
    parser = subparsers.add_parser("list", help=text, description=_DESCRIPTION)
    parser.add_argument(
        "kind",
        nargs="?",
        type=_kind,
        choices=list(_GROUPS),
        metavar="KIND",
        help=f"{', '.join(_GROUPS)}, or a group by its name, such as model; default all",
    )
    parser.add_argument("--json", action="store_true", help="machine-readable rows, those of models with their sizes")
    parser.add_argument(
        "--sizes", action="store_true", help="also the layers and parameters of models, which takes seconds to find"
    )
    add_config_dir(parser)
    parser.set_defaults(carry_out=carry_out)


def _kind(name: str) -> str:
    """The kind with this name, or with this group, as in model=resnet20.

    Raises:
        ConfigError: there is no such group.
    """
    kind = {group: kind for kind, group in _GROUPS.items()}.get(name, name)
    if kind not in _GROUPS:
        from pipetrain.runner.config.suggestions import did_you_mean

        near = did_you_mean(name, [*_GROUPS, *_GROUPS.values()]) or f"; choose from {', '.join(_GROUPS)}"
        raise ConfigError(f"pipetrain list {name}: no such list{near}")
    return kind


def carry_out(options: argparse.Namespace) -> ExitCode:
    """Prints the rows of one kind, or of each.

    Raises:
        ConfigError: --sizes is given for another group than models, or --config-dir names a wrong folder.
    """
    _check(options)
    kinds = [options.kind] if options.kind else list(_GROUPS)
    sizes = options.sizes or (options.json and options.kind == "models")
    listed = {kind: rows(kind, sizes=sizes, folder=options.config_dir) for kind in kinds}
    if options.json:
        print(json.dumps(listed[kinds[0]] if len(kinds) == 1 else listed, indent=2))
        return ExitCode.COMPLETED
    for kind, found in listed.items():
        lines = _lines(found, None if options.kind else kind)
        if kind == "experiments" and options.config_dir is None:
            lines.append("  " * (not options.kind) + _of_papers())
        print(*map(_folded, lines), sep="\n")
    return ExitCode.COMPLETED


def _lines(listed: Sequence[dict[str, Any]], head: str | None) -> list[str]:
    """A line for each row, under a head, or without one with the details of each."""
    lines = text_lines([(row["name"], row["summary"] + _remarks(row)) for row in listed], "<<")
    if head is not None:
        return [f"{head}:", *(f"  {line}" for line in lines)]
    return [text for row, line in zip(listed, lines, strict=True) for text in (line, *_details(row))]


def _of_papers() -> str:
    """A line that says where the presets of papers are."""
    from pipetrain.engine.failure import relative_to_cwd
    from pipetrain.runner.config.choices import papers_folder

    folder = papers_folder()
    if folder is None:
        return "Those of papers are in papers/conf of a checkout of pipetrain, a folder for --config-dir."
    return f"Those of papers: pipetrain list experiments --config-dir {relative_to_cwd(folder)}"


def _check(options: argparse.Namespace) -> None:
    if options.config_dir is not None:
        from pipetrain.runner.config.choices import check_own_folder

        check_own_folder(options.config_dir)
    if options.sizes and options.kind not in (None, "models"):
        raise ConfigError(f"--sizes: {options.kind} have none; pipetrain list models --sizes")


def _folded(line: str) -> str:
    """Folds the line on a narrow terminal; elsewhere it stays whole."""
    if not sys.stdout.isatty():
        return line
    columns = shutil.get_terminal_size().columns
    return "\n".join(textwrap.wrap(line, max(columns, _NARROWEST), subsequent_indent="      "))


def _remarks(row: dict[str, Any]) -> str:
    size = f"  [{row['layers']} layers, {row['parameters']:,} parameters]" if "layers" in row else ""
    return size + (f"  [{row['package']}]" if "package" in row else "")


def _details(row: dict[str, Any]) -> Iterator[str]:
    """Task and paper settings of a model; place in its paper and cost of an experiment."""
    if "dataset" in row:
        task = f"{row['task']}; " if row["task"] else ""
        yield f"    {task}by default dataset={row['dataset']}"
    if row.get("cost"):
        small = f"; the small scale {row['minutes']} min on two cores" if "minutes" in row else ""
        yield f"    {row['paper']}; {row['cost']}{small}"
    elif row.get("paper"):
        yield f"    in its paper {row['paper']}"


def rows(kind: str, *, sizes: bool, folder: Path | None = None) -> list[dict[str, Any]]:
    """Description of each choice; of those in the user's `folder` the name and the summary, and all of experiments.

    Returns:
        `name` and `summary` of each, and the `package` that brings it if it is not pipetrain; of a data set its `task`;
        of a model the `task`, its `dataset`, the overrides of its `paper`; of an experiment its table or figure in the
        `paper`, its `cost`, and, where it has a small scale, the overrides of that, `small`, and the `minutes` that it
        takes; and with `sizes` the numbers of `parameters` and `layers` for that data set.
    """
    from pipetrain.runner.config.choices import choice_of, choices_of, names_of

    group, listed = _GROUPS[kind], []
    built: dict[str, Any] = {}
    for choice in choices_of(group):
        row: dict[str, Any] = {"name": choice.name, "summary": choice.summary, **_description(kind, choice)}
        if choice.package is not None:
            row["package"] = choice.package
        if sizes and kind == "models":
            with suppress(ConfigError, DataError):  # a package's code may not work
                row |= _sizes(choice.name, built)
        listed.append(row)
    own = [choice_of(group, name, folder) for name in names_of(group, folder)] if folder is not None else []
    described = kind == "experiments"
    return listed + [
        {"name": each.name, "summary": each.summary, **(_description(kind, each) if described else {})} for each in own
    ]


def _description(kind: str, choice: "Choice") -> Mapping[str, str | None]:
    from pipetrain.runner.config.checks import task_of
    from pipetrain.runner.config.choices import choices_of_run

    if kind == "datasets":
        return {"task": task_of("dataset", choice.name)}
    if kind == "experiments":
        return {name: choice.remarks[name] for name in _OF_EXPERIMENTS if name in choice.remarks}
    if kind != "models":
        return {}
    dataset = choices_of_run({"model": choice.name})["dataset"]
    return {"task": task_of("dataset", dataset), "dataset": dataset, "paper": choice.remarks.get("paper")}


def _sizes(model: str, datasets: dict[str, Any]) -> dict[str, int]:
    """Layers and parameters of a model for its data set, built without memory for its weights.

    `datasets` are the built data sets by their settings; a new one is added.
    """
    import torch

    from pipetrain.graph.conversion import chain_of
    from pipetrain.runner.config.choices import choices_of_run, section, section_for
    from pipetrain.runner.config.instantiate import Target
    from pipetrain.runner.config.schema import LoaderConfig
    from pipetrain.runner.config.settings import DatasetSettings
    from pipetrain.runner.training.components.data import build_dataset
    from pipetrain.runner.training.components.model import from_data

    content = section_for(model, "dataset", choices_of_run({"model": model})["dataset"])
    key = json.dumps(content, sort_keys=True)
    if key not in datasets:
        datasets[key] = build_dataset(DatasetSettings.of({**asdict(LoaderConfig()), **content}), seed=0)
    target = Target.of("model", section("model", model))
    known = from_data(target, datasets[key])
    with torch.device("meta"):
        chain = chain_of(target.build(**known))
    parameters = sum(parameter.numel() for parameter in chain.module.parameters())
    return {"parameters": parameters, "layers": len(chain)}
