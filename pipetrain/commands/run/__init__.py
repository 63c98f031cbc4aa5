"""`pipetrain run`: Hydra composes the configuration of each job, which is then carried out."""

import argparse
import contextlib
import io
import logging
import os
import sys
import threading
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from pipetrain.engine import outer_launcher
from pipetrain.engine.errors import ConfigError, DataError, ExitCode, RunError
from pipetrain.engine.failure import described
from pipetrain.runner.launch.process_exit import exit_with_parent
from pipetrain.runner.terminal.arguments import Subparsers, add_config_dir
from pipetrain.runner.terminal.output_folder import directory_error

if TYPE_CHECKING:
    from omegaconf import DictConfig

_JOB_LOGGING = "hydra/job_logging="
_EXAMPLES = """\
pipetrain run method=pipedream model=resnet56 partition.stages=4    one run
pipetrain run --multirun method=gpipe,pipedream,pipeoptim seed=0,1  a sweep
pipetrain run experiment=demo --cfg job                             print the configuration and exit
pipetrain run method=pipemare --help                                also show the settings of a choice"""


def add_parser(subparsers: Subparsers) -> None:
    """Adds `run`; its settings and flags may be in any order."""
    parser = subparsers.add_parser(
        "run",
        add_help=False,
        help="train; pipetrain run --help lists the settings",
        usage="pipetrain run [GROUP=CHOICE | NAME=VALUE ...] [flags]",
        description="Trains a model in pipeline stages, one process per stage.",
    )
    parser.add_argument("words", nargs="*", metavar="SETTING", help=argparse.SUPPRESS)
    flags = parser.add_argument_group("flags")
    flags.add_argument("-h", "--help", action="store_true", help="show this help and exit")
    instead = flags.add_mutually_exclusive_group()
    instead.add_argument("-m", "--multirun", action="store_true", help="a run for each combination of seed=0,1 ...")
    instead.add_argument("-c", "--cfg", choices=("job", "hydra", "all"), help="print the configuration and exit")
    instead.add_argument(
        "-i", "--info", choices=("all", "config", "defaults", "defaults-tree", "plugins", "searchpath"),
        help="print how Hydra composes the configuration and exit",
    )  # fmt: skip
    instead.add_argument("--hydra-help", action="store_true", help="show Hydra's own settings and exit")
    flags.add_argument("-p", "--package", metavar="GROUP", help="with --cfg: print only this part")
    flags.add_argument("--resolve", action="store_true", help="with --cfg: resolve interpolations")
    add_config_dir(flags)
    for names in (("-cn", "--config-name"), ("-cp", "--config-path"), ("--experimental-rerun",)):
        parser.add_argument(*names, help=argparse.SUPPRESS)
    parser.set_defaults(parse=parser.parse_intermixed_args, carry_out=carry_out, parser=parser, takes_settings=True)


def carry_out(options: argparse.Namespace) -> ExitCode:
    """Passes the words to Hydra, which calls back for each job; returns the first exit code other than 0.

    Raises:
        ConfigError: a value has no name, a flag lacks its partner, or the run directory cannot be made.
    """
    if options.help:
        from pipetrain.commands.run.settings_help import settings_help

        print(options.parser.format_help())
        print(*settings_help(options.words, options.config_dir), "", "Examples:", _EXAMPLES, sep="\n")
        return ExitCode.COMPLETED
    if outer_launcher.is_present():
        exit_with_parent()
    _check(options)
    words = list(options.words)
    if not outer_launcher.leads():  # rank 0 alone has the run directory and its logs
        kept = [word for word in words if not word.startswith(_JOB_LOGGING)]
        words = [*kept, "hydra.run.dir=.", "hydra.output_subdir=null", f"{_JOB_LOGGING}none"]
    import hydra

    from pipetrain.commands.run import sweep
    from pipetrain.runner.config.messages import with_names
    from pipetrain.runner.config.schema import config_dir

    words = with_names(words)
    begun: list[Path] = []
    codes: list[ExitCode] = []

    def task(config: "DictConfig") -> float | None:
        code, value = _run_job(config, begun)
        codes.append(code)
        return value

    made: list[Path] = []
    _prepare_hydra(made, makes=not (options.cfg or options.info))
    sys.argv = [sys.argv[0], *words, *_flags(options)]
    try:
        try:
            with _in_one_line(options.package):
                hydra.main(version_base="1.3", config_path=str(config_dir()), config_name="config")(task)()
        finally:
            sweep.check()  # a search may have failed only because runs without a result were interrupted
        # a launcher may have carried out the runs of a sweep in other processes
        return sweep.exit_code(running) if (running := sweep.current()) else [*codes, ExitCode.COMPLETED][0]
    except SystemExit as end:  # --hydra-help
        return ExitCode.WRONG_USAGE if end.code else ExitCode.COMPLETED
    except KeyboardInterrupt:
        sweep.show()  # Hydra has no callback here
        if not begun and sweep.current() is None:  # a run, and the lock of a sweep, clean up for themselves
            from pipetrain.commands.run.ending import never_began
            from pipetrain.runner.tracking.run_directory import RunDirectory

            never_began(map(RunDirectory, made))
        raise
    except Exception as error:
        return _failed(error, begun)
    finally:
        sweep.end(interrupted=isinstance(sys.exception(), KeyboardInterrupt))


@contextlib.contextmanager
def _in_one_line(package: str | None) -> Iterator[None]:
    """Raises what Hydra says of an unknown package as a ConfigError."""
    if package is None:
        yield
        return
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            yield
    except SystemExit as end:
        raise ConfigError(f"--package {package}: {said.getvalue()}") from end


def _check(options: argparse.Namespace) -> None:
    """Checks that Hydra does not make, or reports in several lines."""
    from pipetrain.runner.config.composition import check_words

    if nameless := [word for word in options.words if word.startswith("=")]:
        raise ConfigError(f"{nameless[0]}: a value without a name; settings are NAME=VALUE, choices GROUP=CHOICE")
    _check_flags(options)
    check_words(options.words)
    if outer_launcher.leads():
        _warn_of_repeated(options.words)


def _check_flags(options: argparse.Namespace) -> None:
    if not options.cfg and (options.resolve or options.package):
        flag = "--resolve" if options.resolve else f"--package {options.package}"
        raise ConfigError(f"{flag} requires --cfg, which prints the configuration: --cfg job {flag}")
    if options.cfg == "job" and str(options.package).split(".")[0] == "hydra":
        raise ConfigError(f"--cfg job --package {options.package}: the settings of Hydra are in --cfg hydra")
    for flag in ("config_name", "config_path"):
        if (value := getattr(options, flag)) is not None:
            raise ConfigError(
                f"--{flag.replace('_', '-')} {value}: pipetrain has one configuration; choose a preset of your own "
                "with --config-dir FOLDER experiment=NAME"
            )
    if options.experimental_rerun is not None:
        raise ConfigError(
            f"--experimental-rerun {options.experimental_rerun}: not supported; resume=RUN continues a run, and its "
            "settings are in RUN/.hydra/overrides.yaml"
        )


def _warn_of_repeated(words: Sequence[str]) -> None:
    given: dict[str, str] = {}
    for word in words:
        name = word.lstrip("+~").partition("=")[0]
        replaced = f"{name}=null"  # has a mapping take the place of a preset's, which it would be merged with
        if name in given and given[name] != replaced and not word.startswith("~"):
            print(f"pipetrain: warning: {given[name]} {word}: given twice; the last counts", file=sys.stderr)
        given[name] = word


def _failed(error: Exception, begun: Sequence[Path]) -> ExitCode:
    """Reports an error of Hydra or of a third-party sweeper; raises it again if its message is clear.

    `begun` are the directories of runs that Hydra has made.
    """
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    from pipetrain.commands.run import sweep
    from pipetrain.runner.terminal.error_line import report_error
    from pipetrain.runner.tracking.run_directory import runs_in

    if isinstance(error, HydraException | ConfigError | DataError):
        raise error
    if not begun and isinstance(error, OSError | OmegaConfBaseException) and (refused := directory_error(error)):
        raise refused from error
    running = sweep.current()
    if running is None or isinstance(error, OmegaConfBaseException) or not (running.objective or running.interruption):
        raise error
    sweep.show()
    code = ExitCode.FAILED if sweep.ends(running.folder) or runs_in(running.folder) else ExitCode.WRONG_USAGE
    part = "sweeper" if running.objective else "launcher"  # which may have lost the process of a run
    return report_error(RunError(f"hydra/{part}: {described(error)}"), code)


def _prepare_hydra(made: list[Path], *, makes: bool) -> None:
    """Registers the schema, installed choices and resolvers; folders that Hydra makes for runs are added to `made`.

    With `makes=False` their names are only shown.
    """
    from omegaconf import OmegaConf

    from pipetrain.commands.run.ending import log_thread
    from pipetrain.runner.config.composition import folder_name
    from pipetrain.runner.config.installed import register_configuration
    from pipetrain.runner.tracking.files import new_folder

    # Hydra's own report of an error has several lines and exits with 1; with this it raises the error instead
    os.environ.setdefault("HYDRA_FULL_ERROR", "1")
    logging.raiseExceptions = False  # logging to a full disk must not print tracebacks
    threading.excepthook = log_thread
    register_configuration()

    # cached as `now` is: the folder of a run, or of all runs of a sweep, is made once
    def resolved(path: str) -> str:
        if not makes:
            return path
        made.append(new_folder(Path(path)))
        return str(made[-1])

    OmegaConf.register_new_resolver("new_folder", resolved, use_cache=True, replace=True)
    OmegaConf.register_new_resolver("folder_name", folder_name, replace=True)


def _flags(options: argparse.Namespace) -> list[str]:
    """The flags as Hydra takes them: after the settings."""
    given = vars(options)
    switches = [f"--{name.replace('_', '-')}" for name in ("multirun", "resolve", "hydra_help") if given[name]]
    values = {name.replace("_", "-"): given[name] for name in ("cfg", "info", "package", "config_dir")}
    return [*switches, *(f"--{name}={value}" for name, value in values.items() if value is not None)]


def _run_job(config: "DictConfig", begun: list[Path]) -> tuple[ExitCode, float | None]:
    """Exit code of a run that this carries out, and the value of its objective in a sweep.

    The run directory is added to `begun`: from then on the run itself reports an interruption.
    """
    from hydra.core.hydra_config import HydraConfig
    from hydra.types import RunMode
    from omegaconf import OmegaConf

    from pipetrain.commands.run import following, sweep
    from pipetrain.commands.run.ending import remove_empty_run
    from pipetrain.commands.run.objective import objective_of
    from pipetrain.commands.run.one_run import run
    from pipetrain.runner.config.composition import choices_made
    from pipetrain.runner.tracking.run_directory import RunDirectory

    settings = HydraConfig.get()
    choices = choices_made(settings.runtime.choices)
    folder = Path(settings.runtime.output_dir)
    begun.append(folder)
    folder_of_sweep = Path(settings.sweep.dir).absolute() if settings.mode is RunMode.MULTIRUN else None
    carry_out_run = partial(run, config, choices, folder, OmegaConf.structured(settings), folder_of_sweep)
    if folder_of_sweep is None:
        return carry_out_run(), None
    if sweep.current() is None and sweep.has_local_runs(settings.launcher):  # in a process of joblib's
        code = following.carried_out(folder_of_sweep, carry_out_run)
    else:
        code = carry_out_run()
    sweep.add(settings, config, code)
    if code in (ExitCode.PREEMPTED, ExitCode.INTERRUPTED):
        remove_empty_run(RunDirectory(folder))
        return code, None
    return code, objective_of(config, settings.sweeper, folder, code)
