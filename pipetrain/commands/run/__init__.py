"""`pipetrain run`: Hydra composes the configuration of each job, and each is carried out in turn."""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import hydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from pipetrain.commands import Subparsers
from pipetrain.commands.run.one_run import run
from pipetrain.config.schema import config_dir, register_schema
from pipetrain.config.settings import choices_made
from pipetrain.errors import ExitCode


def add_parser(subparsers: Subparsers) -> None:
    """Adds `run`, whose words are all Hydra's, flags included."""
    parser = subparsers.add_parser("run", add_help=False, help="train; pipetrain run --help lists the settings")
    parser.set_defaults(parse=lambda words: argparse.Namespace(words=words, carry_out=carry_out))


def carry_out(options: argparse.Namespace) -> ExitCode:
    """Hands the words to Hydra, which calls back for each job; the first exit code other than 0."""
    codes: list[ExitCode] = []

    def task(config: DictConfig) -> None:
        settings = HydraConfig.get()
        choices = choices_made(settings.runtime.choices)
        codes.append(run(config, choices, Path(settings.runtime.output_dir), OmegaConf.structured(settings)))

    # with it Hydra raises what it else prints in several lines before it exits with 1
    os.environ.setdefault("HYDRA_FULL_ERROR", "1")
    if "COMP_LINE" in os.environ:
        os.environ["COMP_LINE"] = os.environ["COMP_LINE"].replace("pipetrain run", "pipetrain", 1)
    register_schema()
    sys.argv = [sys.argv[0], *_among_workers(options.words)]
    try:
        hydra.main(version_base="1.3", config_path=str(config_dir()), config_name="config")(task)()
    except SystemExit as end:  # argparse, on --help and wrong flags
        return ExitCode.WRONG_USAGE if end.code else ExitCode.COMPLETED
    return next((code for code in codes if code), ExitCode.COMPLETED)


def _among_workers(words: Sequence[str]) -> Sequence[str]:
    """The words; those of a worker other than rank 0 leave the run directory and its logs to rank 0."""
    if os.environ.get("RANK", "0") == "0":
        return words
    return [*words, "hydra.run.dir=.", "hydra.output_subdir=null", "hydra.job_logging.root.handlers=[]"]
