"""`pipetrain run`: Hydra composes the configuration of each job, and each is carried out in turn."""

import argparse
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pipetrain.commands import Subparsers
from pipetrain.errors import ConfigError, ExitCode

if TYPE_CHECKING:
    from omegaconf import DictConfig

_COMPLETION = ("-sc", "--shell-completion")
_SHELLS = ("bash", "fish", "zsh")


def add_parser(subparsers: Subparsers) -> None:
    """Adds `run`, whose words are all Hydra's, flags included."""
    parser = subparsers.add_parser("run", add_help=False, help="train; pipetrain run --help lists the settings")
    parser.set_defaults(parse=lambda words: argparse.Namespace(words=words, carry_out=carry_out))


def carry_out(options: argparse.Namespace) -> ExitCode:
    """Hands the words to Hydra, which calls back for each job; the first exit code other than 0.

    Raises:
        ConfigError: shell completion is asked for without a shell, or the run directory cannot be made.
    """
    import hydra
    from omegaconf import OmegaConf

    from pipetrain.commands.run import sweep_lock
    from pipetrain.config.schema import config_dir, register_schema
    from pipetrain.tracking.new_folder import new_folder

    _check_completion(options.words)
    codes: list[ExitCode] = []

    def task(config: "DictConfig") -> None:
        codes.append(_run_job(config))

    # Hydra's own report of an error has several lines and exits with 1; with this it raises the error instead
    os.environ.setdefault("HYDRA_FULL_ERROR", "1")
    if "COMP_LINE" in os.environ:
        os.environ["COMP_LINE"] = os.environ["COMP_LINE"].replace("pipetrain run", "pipetrain", 1)
    logging.raiseExceptions = False  # a log on a full disk must not print tracebacks of its own
    register_schema()
    # cached as `now` is: the folder of a run, or of all runs of a sweep, is made once
    OmegaConf.register_new_resolver(
        "new_folder", lambda path: str(new_folder(Path(path))), use_cache=True, replace=True
    )
    sys.argv = [sys.argv[0], *_as_worker(options.words)]
    try:
        hydra.main(version_base="1.3", config_path=str(config_dir()), config_name="config")(task)()
    except SystemExit as end:  # argparse, on --help and wrong flags
        return ExitCode.WRONG_USAGE if end.code else ExitCode.COMPLETED
    except OSError as error:  # Hydra makes the directory of a run before it calls back
        place = f"{error.filename}: {error.strerror}"
        raise ConfigError(
            f"{place}; hydra.run.dir=FOLDER (of a sweep, hydra.sweep.dir=FOLDER) names a folder to write to"
        ) from error
    finally:
        sweep_lock.release()
    return next((code for code in codes if code), ExitCode.COMPLETED)


def _run_job(config: "DictConfig") -> ExitCode:
    from hydra.core.hydra_config import HydraConfig
    from omegaconf import OmegaConf

    from pipetrain.commands.run.one_run import run
    from pipetrain.config.settings import choices_made

    settings = HydraConfig.get()
    choices = choices_made(settings.runtime.choices)
    return run(config, choices, Path(settings.runtime.output_dir), OmegaConf.structured(settings))


def _check_completion(words: Sequence[str]) -> None:
    """Checks what Hydra would end with a traceback for."""
    if not set(_COMPLETION) & set(words):
        return
    requests = [word for word in words if word.startswith(("install=", "uninstall=", "query="))]
    if len(requests) != 1 or requests[0].partition("=")[2] not in _SHELLS:
        raise ConfigError(
            f"{' '.join(words)}: shell completion takes install=SHELL or uninstall=SHELL; SHELL is one of "
            f"{', '.join(_SHELLS)}"
        )


def _as_worker(words: Sequence[str]) -> Sequence[str]:
    """The words; those of a worker other than rank 0 leave the run directory and its logs to rank 0."""
    if os.environ.get("RANK", "0") == "0":
        return words
    return [*words, "hydra.run.dir=.", "hydra.output_subdir=null", "hydra.job_logging.root.handlers=[]"]
