"""`pipetrain timeline`: when each stage does what, as it will be and as it was."""

import argparse
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path

from pipetrain.engine.errors import ConfigError, ExitCode
from pipetrain.runner.terminal.arguments import Subparsers, add_settings_parser
from pipetrain.runner.terminal.output_folder import check_writable
from pipetrain.runner.tracking.files import new_folder

_DESCRIPTION = """\
With settings of `pipetrain run`: draws the operation lists that such a run would execute, one panel per phase, and per
choice of method=a,b. With RUN, the directory of a run with trace=true: draws the lists, played with the run's median
times, above what was measured. Writes timeline.svg and timeline.html."""


_EPILOG = """\
For example: pipetrain timeline method=gpipe,pipeoptim partition.stages=4 train.microbatches=4
             pipetrain timeline method=pipedream partition.stages=4 --backward-time 2 --link-time 0.5
             pipetrain timeline outputs/DATE/TIME --from 8"""
_CHECKED = 12
"""Members of a sweep that are checked; no figure has room for more."""
_TIMES = {
    "forward_time": "forward", "backward_time": "backward", "recompute_time": "recomputation", "update_time": "update",
    "weight_gradient_time": "weight_gradient",
    "link_time": "link", "message_bytes": "message_bytes", "link_bandwidth": "link_bandwidth", "seconds": "seconds",
}  # fmt: skip
"""Option -> field of GivenTimes."""


def add_parser(subparsers: Subparsers) -> None:
    """Adds `timeline`."""
    parser = add_settings_parser(
        subparsers, "timeline", "method=pipedream partition.stages=4", "SETTING | RUN",
        help="draw when each stage does what, for settings or for a run", description=_DESCRIPTION, epilog=_EPILOG,
    )  # fmt: skip
    parser.add_argument(
        "-o", "--output", type=Path, help="output directory; default RUN/timeline, or timeline, timeline-2, ..."
    )
    parser.add_argument(
        "--minibatches",
        type=int,
        metavar="COUNT",
        help="how many to draw; default: enough to fill the pipeline twice, or 6 of RUN",
    )
    parser.add_argument(
        "--from", type=int, dest="first", metavar="K", help="the first minibatch of RUN to draw, counted from 0"
    )
    parser.add_argument(
        "--trust", action="store_true", help="call schedules and methods that RUN names and pipetrain does not bring"
    )
    given = parser.add_argument_group("given times, in any unit: one number, or one per stage or link, such as 1,1,2")
    given.add_argument("--forward-time", type=_numbers, metavar="T", help="per microbatch; default 1")
    given.add_argument("--backward-time", type=_numbers, metavar="T", help="per microbatch; default 2")
    given.add_argument("--recompute-time", type=_numbers, metavar="T", help="per microbatch; default: as the forward")
    given.add_argument(
        "--weight-gradient-time",
        type=_numbers,
        metavar="T",
        help="part of the backward that a schedule which splits it runs later; default: half",
    )
    given.add_argument("--update-time", type=_numbers, metavar="T", help="per optimizer step; default 0")
    given.add_argument("--link-time", type=_numbers, metavar="T", help="per message; default 0")
    given.add_argument(
        "--message-bytes", type=_numbers, metavar="B", help="per microbatch message, in either direction"
    )
    given.add_argument("--link-bandwidth", type=_numbers, metavar="B", help="bytes per unit of time")
    given.add_argument("--seconds", action="store_true", help="times are in seconds: also print samples per second")
    parser.set_defaults(carry_out=carry_out)


def carry_out(options: argparse.Namespace) -> ExitCode:
    """Draws the timeline and prints its tables.

    Raises:
        ConfigError: a setting or option cannot work, or the directory is of no traced run.
    """
    from pipetrain.runner.config.composition import combinations, composed, with_choices_of
    from pipetrain.runner.tracking.run_directory import RunDirectory, check_own

    run = _run_of(options.words)
    output: Path = options.output or (Path("timeline") if run is None else RunDirectory(run).timeline)
    if run is not None and options.output is None:
        check_own(output)  # in an untrusted directory it may lead elsewhere
    check_writable(f"-o {output}", output)
    if options.minibatches is not None and options.minibatches < 1:
        raise ConfigError(f"--minibatches {options.minibatches}: at least 1")
    given = {name: value for name in _TIMES if (value := getattr(options, name))}
    if run is not None:
        _check_of_run(options, given)
    else:
        _check_without_run(options)
        words = with_choices_of(options.config_dir, options.words)
        for combination in islice(combinations(words), _CHECKED):
            composed(combination)
    # from here on torch is needed, which takes seconds to import
    from pipetrain.reporting.timeline.drawing import write_timeline
    from pipetrain.reporting.timeline.from_run import timeline_of_run
    from pipetrain.reporting.timeline.from_settings import GivenTimes, timeline_of_settings
    from pipetrain.runner.terminal.text_table import printable

    if run is not None:
        panels, lines = timeline_of_run(run, options.first, options.minibatches, trust=options.trust)
    else:
        times = GivenTimes(**{_TIMES[name]: value for name, value in given.items()})
        panels, lines = timeline_of_settings(words, options.minibatches, times)
    if options.output is None and run is None:
        output = new_folder(output)
    names = write_timeline(output, panels)
    print(*map(printable, [*lines, f"written to {output}: {', '.join(names)}"]), sep="\n")
    return ExitCode.COMPLETED


def _check_without_run(options: argparse.Namespace) -> None:
    if options.first is not None:
        raise ConfigError(f"--from {options.first} needs a run directory; without one, minibatch 0 comes first")
    if options.trust:
        raise ConfigError("--trust needs a run directory; the code that settings name is called without it")


def _check_of_run(options: argparse.Namespace, given: Mapping[str, object]) -> None:
    """Checks that no flag is given that a run, which has its own times and settings, leaves without effect."""
    flags = [f"--{name.replace('_', '-')}" for name in given]
    flags += [f"--config-dir {options.config_dir}"] if options.config_dir is not None else []
    if flags:
        raise ConfigError(f"{flags[0]} cannot be combined with a run directory")


def _run_of(words: Sequence[str]) -> Path | None:
    """The run directory among the words; None if they are settings."""
    runs = [word for word in words if Path(word).is_dir() or not set("=~") & set(word)]
    if not runs:
        return None
    if len(words) > 1:
        other = next(word for word in words if word != runs[0])
        raise ConfigError(f"{runs[0]} {other}: give either a run directory, which has its own settings, or settings")
    return Path(runs[0])


def _numbers(text: str) -> list[float]:
    try:
        return [float(word) for word in text.split(",")]
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text}: one number, or several such as 1,1,2") from error
