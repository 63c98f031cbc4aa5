"""What runs are called beside each other: what differs between them, and nothing else."""

from collections.abc import Sequence
from typing import Any

from pipetrain.report.sweep.compared_run import ComparedRun

_NOT_COMPARED = ("resume", "debug", "trace", "log", "checkpoint", "launch", "hydra")
"""Settings, and sections of settings, that do not make runs different."""


def kind_of(run: ComparedRun) -> tuple[tuple[str, str], ...]:
    """Equal for runs that differ only in the seed."""
    return tuple(sorted((name, str(value)) for name, value in run.settings.items() if _is_compared(name)))


def names(runs: Sequence[ComparedRun]) -> list[str]:
    """A name for each of some runs that all differ.

    It has what was asked for on the command line of any of them and differs between them; where that does not tell two
    apart, everything in which these differ.
    """
    asked = {name for run in runs for name in run.asked}
    known = {name for run in runs for name in run.settings}
    # `method` asks for that alone, not for all of `method.…`; `train.target` is nothing by itself
    shown = [each for each in _differing(runs) if each in asked or _is_within(each, asked - known)]
    found = [_name(run, shown) for run in runs]
    for name in {name for name in found if found.count(name) > 1}:
        same = [index for index, each in enumerate(found) if each == name]
        more = [setting for setting in _differing([runs[index] for index in same]) if setting not in shown]
        for index in same:
            found[index] = _name(runs[index], [*shown, *more])
    return found


def _is_compared(setting: str) -> bool:
    parts = setting.split(".")
    return parts[0] not in _NOT_COMPARED and parts[-1] != "seed"


def _is_within(setting: str, asked: set[str]) -> bool:
    parts = setting.split(".")
    return any(".".join(parts[:count]) in asked for count in range(1, len(parts) + 1))


def _differing(runs: Sequence[ComparedRun]) -> list[str]:
    """The settings that differ, the method first."""
    settings = sorted({name for run in runs for name in run.settings if _is_compared(name)})
    differing = [name for name in settings if len({str(run.settings.get(name)) for run in runs}) > 1]
    return sorted(differing, key=lambda name: name != "method")


def _name(run: ComparedRun, shown: Sequence[str]) -> str:
    last = [setting.rpartition(".")[2] for setting in shown]
    words = []
    for setting, short in zip(shown, last, strict=True):
        if (value := run.settings.get(setting)) is not None:
            label = short if last.count(short) == 1 else setting
            words.append(_shown(value) if setting == "method" else f"{label}={_shown(value)}")
    return " ".join(words) or str(run.settings.get("method", run.path))


def _shown(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
