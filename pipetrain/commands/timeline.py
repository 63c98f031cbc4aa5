"""`pipetrain timeline`: when each stage does what, as it will be and as it was."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from pipetrain.errors import ConfigError
from pipetrain.report.timeline.given_times import GivenTimes
from pipetrain.report.timeline.of_run import timeline_of_run
from pipetrain.report.timeline.of_settings import timeline_of_settings
from pipetrain.report.timeline.page import page
from pipetrain.report.timeline.panels import Panel
from pipetrain.report.timeline.png import draw

_MOST_BOXES = 50_000
_DESCRIPTION = """\
With settings of `pipetrain run`: draws the operation lists that such a run would carry out, each phase, and with
method=a,b each choice, one above the other. With RUN, the directory of a run that had trace=true: draws the lists
by the run's median times above what was measured. Writes timeline.png and timeline.html."""


def timeline(words: Sequence[str]) -> None:
    """Carries out the command line behind `pipetrain timeline`.

    Raises:
        ConfigError: a setting or option cannot work, or the directory is of no traced run.
    """
    options = _parser().parse_intermixed_args(words)
    run = _run_of(options.words)
    if options.output.exists() and not options.output.is_dir():
        raise ConfigError(f"-o {options.output}: exists and is not a directory")
    if options.minibatches is not None and options.minibatches < 1:
        raise ConfigError(f"--minibatches {options.minibatches}: at least 1")
    if run is not None:
        panels, lines = timeline_of_run(run, options.first, options.minibatches)
    else:
        if options.first is not None:
            raise ConfigError(f"--from {options.first} goes with a run directory; without one, minibatch 0 comes first")
        panels, lines = timeline_of_settings(options.words, options.minibatches, _given(options))
    _write(options.output, panels)
    print(*lines, f"written to {options.output}: timeline.png, timeline.html", sep="\n")


def _run_of(words: Sequence[str]) -> Path | None:
    """The run directory among the words; None where they are settings."""
    runs = [word for word in words if Path(word).is_dir() or not set("=~") & set(word)]
    if not runs:
        return None
    if len(words) > 1:
        other = next(word for word in words if word != runs[0])
        raise ConfigError(f"{runs[0]} {other}: a run directory alone, whose settings are its own, or settings alone")
    return Path(runs[0])


def _given(options: argparse.Namespace) -> GivenTimes:
    return GivenTimes(
        options.forward_time, options.backward_time, options.recompute_time, options.update_time,
        options.link_time, options.message_bytes, options.link_bandwidth, options.seconds,
    )  # fmt: skip


def _write(folder: Path, panels: Sequence[Panel]) -> None:
    if (boxes := sum(len(row) for panel in panels for row in panel.rows)) > _MOST_BOXES:
        raise ConfigError(
            f"--minibatches: {boxes:,} operations are too many to draw; fewer than {_MOST_BOXES:,} are not"
        )
    folder.mkdir(parents=True, exist_ok=True)
    draw(folder / "timeline.png", panels)
    title = panels[0].title if len(panels) == 1 else "Timelines"
    (folder / "timeline.html").write_text(page(title, panels), encoding="utf-8")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="pipetrain timeline", description=_DESCRIPTION)
    parser.add_argument("words", nargs="*", metavar="SETTING | RUN", help="such as method=pipedream partition.stages=4")
    parser.add_argument("-o", "--output", type=Path, default=Path("timeline"), help="directory; default timeline")
    parser.add_argument(
        "--minibatches", type=int, help="how many; default until the pipeline is full twice, or 6 of RUN"
    )
    parser.add_argument("--from", type=int, dest="first", help="of RUN: the first minibatch, counted from 0")
    given = parser.add_argument_group("given times, any unit; one number, or one for each stage or link: 1,1,2")
    given.add_argument("--forward-time", type=_numbers, default=[1.0], metavar="T", help="of a microbatch; default 1")
    given.add_argument("--backward-time", type=_numbers, default=[2.0], metavar="T", help="of a microbatch; default 2")
    given.add_argument("--recompute-time", type=_numbers, metavar="T", help="of a microbatch; default the forward's")
    given.add_argument("--update-time", type=_numbers, default=[0.0], metavar="T", help="default 0")
    given.add_argument("--link-time", type=_numbers, default=[0.0], metavar="T", help="of any message; default 0")
    given.add_argument("--message-bytes", type=_numbers, metavar="B", help="of a microbatch's message, either way")
    given.add_argument("--link-bandwidth", type=_numbers, metavar="B", help="bytes in a unit of time")
    given.add_argument("--seconds", action="store_true", help="the unit is the second: print samples per second")
    return parser


def _numbers(text: str) -> list[float]:
    return [float(word) for word in text.split(",")]
