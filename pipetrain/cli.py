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
from pipetrain.config import config_dir, register_schema
from pipetrain.errors import ConfigError
from pipetrain.run import COMPLETED, FAILED, INTERRUPTED, WRONG_CONFIG, report_error, run

_USAGE = """\
usage: pipetrain COMMAND ...

  run [OVERRIDE ...]          train; pipetrain run --help lists the settings and the choices of each group
  list KIND [--json]          what there is: models, datasets, methods, schedules, experiments
  eval RUN [OVERRIDE ...]     evaluate a run's checkpoint [--step K]
  export RUN -o FILE          write a run's weights as a plain state dict [--step K]
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
    from pipetrain.commands.listing import KINDS, show

    parser = argparse.ArgumentParser(prog="pipetrain list")
    parser.add_argument("kind", nargs="?", choices=KINDS, help="all of them when left out")
    parser.add_argument("--json", action="store_true", help="machine-readable rows")
    options = parser.parse_args(words)
    show([options.kind] if options.kind else list(KINDS), options.json)
    return COMPLETED


def _eval(words: list[str]) -> int:
    from pipetrain.commands.evaluate import evaluate

    parser = argparse.ArgumentParser(prog="pipetrain eval")
    parser.add_argument("run", type=Path, help="a run directory")
    parser.add_argument("overrides", nargs="*", help="settings to change, such as dataset.root=/data device=cpu")
    parser.add_argument("--step", type=int, help="the checkpoint of this step; default the newest")
    options = parser.parse_args(words)
    evaluate(options.run, options.step, options.overrides)
    return COMPLETED


def _export(words: list[str]) -> int:
    from pipetrain.commands.export import export

    parser = argparse.ArgumentParser(prog="pipetrain export")
    parser.add_argument("run", type=Path, help="a run directory")
    parser.add_argument("--step", type=int, help="the checkpoint of this step; default the newest")
    parser.add_argument("-o", "--output", type=Path, required=True, help="file to write with torch.save")
    options = parser.parse_args(words)
    export(options.run, options.step, options.output)
    return COMPLETED


def _doctor(words: list[str]) -> int:
    from pipetrain.commands.doctor import examine

    argparse.ArgumentParser(prog="pipetrain doctor", description="What this machine has.").parse_args(words)
    return examine()


_COMMANDS: dict[str, Callable[[list[str]], int]] = {
    "run": _run,
    "list": _list,
    "eval": _eval,
    "export": _export,
    "doctor": _doctor,
}
