"""The `pipetrain` command: its subcommands and exit codes."""

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from pipetrain import __version__
from pipetrain.commands.run import COMPLETED, FAILED, INTERRUPTED, WRONG_CONFIG, report_error, run
from pipetrain.config.schema import config_dir, register_schema
from pipetrain.errors import ConfigError

_USAGE = """\
usage: pipetrain COMMAND ...

  run [OVERRIDE ...]          train; pipetrain run --help lists the settings and the choices of each group
  list KIND [--json]          what there is: models, datasets, methods, schedules, experiments
  eval RUN [OVERRIDE ...]     evaluate a run's checkpoint [--step K]
  export RUN -o FILE          write a run's weights as a plain state dict [--step K]
  timeline [OVERRIDE ...]     draw when each stage does what; timeline RUN: beside what a run with trace=true did
  stability [-o DIR]          stable step sizes in theory, PipeMare's lemmas checked, its figures [--data FILE]
  report staleness            small runs of every method: staleness and memory, closed form beside measurement
  report runs FOLDER ...      the runs of a sweep as one table and figure
  doctor                      what this machine has, and what is missing for what

  --version, --help

For example: pipetrain run method=pipedream model=resnet56 partition.stages=4
Completion:  eval "$(pipetrain run -sc install=bash)"
"""


def main() -> None:
    """Entry point; exit codes 0 completed, 1 failed, 2 wrong usage or configuration, 3 diverged, 130 interrupted."""
    try:
        code = _main(sys.argv[1:])
    except KeyboardInterrupt:
        code = INTERRUPTED
    except BrokenPipeError:
        code = FAILED
    sys.stdout.flush()
    sys.exit(code)


def _main(words: list[str]) -> int:
    if not words or words[0] in ("-h", "--help", "help"):
        print(_USAGE, end="")
        return COMPLETED if words else WRONG_CONFIG
    if words[0] == "--version":
        print(f"pipetrain {__version__}")
        return COMPLETED
    if words[0] in ("-sc", "--shell-completion"):  # the shell asks without the subcommand
        return _run(words)
    if words[0] not in _COMMANDS:
        known = ", ".join(_COMMANDS)
        return report_error(ConfigError(f"{words[0]!r} is no command of pipetrain; commands: {known}"), WRONG_CONFIG)
    try:
        return _COMMANDS[words[0]](words[1:])
    except ConfigError as error:
        return report_error(error, WRONG_CONFIG)


def _run(words: list[str]) -> int:
    """Hands the words to Hydra, which composes the configuration and calls back for each job."""
    codes: list[int] = []

    def task(config: DictConfig) -> None:
        settings = HydraConfig.get()
        names = {group: str(choice) for group, choice in settings.runtime.choices.items() if "/" not in str(group)}
        codes.append(run(config, names, Path(settings.runtime.output_dir), OmegaConf.structured(settings)))

    # with it Hydra raises what it else prints in several lines before it exits with 1
    os.environ.setdefault("HYDRA_FULL_ERROR", "1")
    if "COMP_LINE" in os.environ:
        os.environ["COMP_LINE"] = os.environ["COMP_LINE"].replace("pipetrain run", "pipetrain", 1)
    if os.environ.get("RANK", "0") != "0":
        # one directory for all workers: that of rank 0
        words = [*words, "hydra.run.dir=.", "hydra.output_subdir=null", "hydra.job_logging.root.handlers=[]"]
    register_schema()
    sys.argv = [sys.argv[0], *words]
    wrapped = hydra.main(version_base="1.3", config_path=str(config_dir()), config_name="config")(task)
    try:
        wrapped()
    except (HydraException, OmegaConfBaseException) as error:
        return report_error(error, WRONG_CONFIG)
    except SystemExit as end:  # argparse, on wrong flags
        return end.code if isinstance(end.code, int) else WRONG_CONFIG
    return next((code for code in codes if code), COMPLETED)


def _list(words: list[str]) -> int:
    from pipetrain.commands.list import KINDS, show

    parser = argparse.ArgumentParser(prog="pipetrain list")
    parser.add_argument("kind", nargs="?", choices=KINDS, help="all of them when left out")
    parser.add_argument("--json", action="store_true", help="machine-readable rows")
    options = parser.parse_args(words)
    show([options.kind] if options.kind else list(KINDS), options.json)
    return COMPLETED


def _eval(words: list[str]) -> int:
    from pipetrain.run.evaluate import evaluate

    parser = argparse.ArgumentParser(prog="pipetrain eval")
    parser.add_argument("run", type=Path, help="a run directory")
    parser.add_argument("overrides", nargs="*", help="settings to change, such as dataset.root=/data device=cpu")
    parser.add_argument("--step", type=int, help="the checkpoint of this step; default the newest")
    options = parser.parse_args(words)
    evaluate(options.run, options.step, options.overrides)
    return COMPLETED


def _export(words: list[str]) -> int:
    from pipetrain.run.export import export

    parser = argparse.ArgumentParser(prog="pipetrain export")
    parser.add_argument("run", type=Path, help="a run directory")
    parser.add_argument("--step", type=int, help="the checkpoint of this step; default the newest")
    parser.add_argument("-o", "--output", type=Path, required=True, help="file to write with torch.save")
    options = parser.parse_args(words)
    export(options.run, options.step, options.output)
    return COMPLETED


def _timeline(words: list[str]) -> int:
    from pipetrain.commands.timeline import timeline

    try:
        timeline(words)
    except (HydraException, OmegaConfBaseException) as error:
        return report_error(error, WRONG_CONFIG)
    return COMPLETED


def _stability(words: list[str]) -> int:
    from pipetrain.report.stability.report import stability
    from pipetrain.theory.stability.tables import Setting

    default = Setting()
    parser = argparse.ArgumentParser(prog="pipetrain stability", description="Figures keep the settings of the paper.")
    for name, kind, text in (
        ("curvature", float, "λ"),
        ("discrepancy", float, "Δ"),
        ("tau-forward", int, "τ_F in updates"),
        ("tau-backward", int, "τ_B in updates"),
        ("tau-recompute", int, "τ_R in updates; default a third of the way from τ_B to τ_F"),
        ("recompute-ratio", float, "Φ/Δ"),
        ("momentum", float, "β"),
        ("decay", float, "D of T2; default that of eq. 14"),
    ):
        value = getattr(default, name.replace("-", "_"))
        shown = text if value is None else f"{text}; default {value:g}"
        parser.add_argument(f"--{name}", type=kind, default=value, help=shown)
    parser.add_argument("--data", type=Path, help="cpusmall in LIBSVM format, plain or .gz, for fig. 5(b)")
    parser.add_argument("--iterations", type=int, default=1_000_000, help="of fig. 5(b); default 1,000,000")
    parser.add_argument("-o", "--output", type=Path, default=Path("stability"), help="directory; default stability")
    options = vars(parser.parse_args(words))
    data, iterations, output = (options.pop(name) for name in ("data", "iterations", "output"))
    return COMPLETED if stability(Setting(**options), data, iterations, output) else FAILED


def _report(words: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="pipetrain report")
    kinds = parser.add_subparsers(dest="kind", required=True)
    staleness = kinds.add_parser("staleness", help="small runs of every method beside the papers' tables")
    staleness.add_argument("--stages", type=int, default=4, help="D; default 4")
    staleness.add_argument("--microbatches", type=int, default=1, help="N; default 1, and D for pipedream_2bw")
    staleness.add_argument("-o", "--output", type=Path, help="also write the rows as JSON")
    runs = kinds.add_parser("runs", help="the runs of a sweep as a table and a figure")
    runs.add_argument("folders", type=Path, nargs="+", help="a sweep's directory, or several runs")
    runs.add_argument("--metric", default="top1", help="what to compare; default top1")
    runs.add_argument("-o", "--output", type=Path, help="write OUTPUT.md, OUTPUT.json and OUTPUT.png")
    options = parser.parse_args(words)
    if options.kind == "runs":
        from pipetrain.report.sweep import table as sweep

        sweep.report(options.folders, options.metric, options.output)
        return COMPLETED
    from pipetrain.reproduce import staleness as table

    return COMPLETED if table.report(options.stages, options.microbatches, options.output) else FAILED


def _doctor(words: list[str]) -> int:
    from pipetrain.commands.doctor import examine

    argparse.ArgumentParser(prog="pipetrain doctor", description="What this machine has.").parse_args(words)
    return examine()


_COMMANDS: dict[str, Callable[[list[str]], int]] = {
    "run": _run,
    "list": _list,
    "eval": _eval,
    "export": _export,
    "timeline": _timeline,
    "stability": _stability,
    "report": _report,
    "doctor": _doctor,
}
