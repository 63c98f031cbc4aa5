"""What runs are called beside each other: what differs between them, and nothing else."""

from collections.abc import Sequence
from typing import Any

from pipetrain.report.sweep.compared_run import ComparedRun, is_seed
from pipetrain.report.text_table import printable, shortened

_NOT_COMPARED = (
    "resume", "replay_drains", "debug", "trace", "log", "checkpoint", "launch", "sweep", "hydra", "partition.path",
)  # fmt: skip
"""Settings, and sections of settings, that do not make runs different; of a plan in a file, its content does."""
_METHOD = "method"
_DRAINS = "checkpoint.every_steps"
"""The setting of checkpoints that changes results: an asynchronous pipeline drains for each."""


def kind_of(run: ComparedRun) -> tuple[tuple[str, str], ...]:
    """Equal for runs whose settings differ only in seeds."""
    return tuple(sorted((name, str(value)) for name, value in run.settings.items() if _is_compared(name)))


def alike(one: ComparedRun, other: ComparedRun) -> bool:
    """Whether no fact that is known of both runs differs."""
    return all(other.facts.get(name, value) == value for name, value in one.facts.items())


def names(runs: Sequence[ComparedRun]) -> list[str]:
    """A name for each of some runs that all differ, made of `told_apart`; of a single run its method, or its path."""
    return [
        " ".join(value if setting == _METHOD else f"{setting}={value}" for setting, value in told.items())
        or _shown(run.settings.get(_METHOD, run.path))
        for run, told in zip(runs, told_apart(runs), strict=True)
    ]


def told_apart(runs: Sequence[ComparedRun]) -> list[dict[str, str]]:
    """Setting -> value for each of some runs that all differ, the method first.

    It has what was asked for on the command line of any of them and differs between them; where that does not tell two
    apart, as much else as does.
    """
    asked = {name for run in runs for name in run.asked}
    known = {name for run in runs for name in run.settings}
    # `method` asks for that alone, not for all of `method.…`; `train.target` is nothing by itself
    shown = [each for each in _differing(runs) if each in asked or _is_within(each, asked - known)]
    found = [_told(run, shown) for run in runs]
    for told in [each for number, each in enumerate(found) if each in found[:number]]:
        same = [index for index, each in enumerate(found) if each == told]
        more = _telling_apart([runs[index] for index in same])
        for index in same:
            found[index] = _told(runs[index], [*shown, *(setting for setting in more if setting not in shown)])
    return found


def labels(names: Sequence[str], methods: Sequence[str], longest: int) -> list[str]:
    """The names, or, where one is longer than `longest`, numbers with the methods, such as `3 pipeoptim`."""
    if all(len(name) <= longest for name in names):
        return list(names)
    numbers = range(1, len(names) + 1)
    return [f"{number} {shortened(each, longest)}".strip() for number, each in zip(numbers, methods, strict=True)]


def _telling_apart(runs: Sequence[ComparedRun]) -> list[str]:
    """As few settings or facts as tell the runs apart; choices of a group rather than what follows from them."""
    left = sorted(_differing(runs), key=lambda name: (any(name in run.facts for run in runs), "." in name))
    chosen: list[str] = []

    def told(more: Sequence[str]) -> int:
        return len({tuple(str(_value(run, name)) for name in more) for run in runs})

    while told(chosen) < len(runs) and left:
        best = max(left, key=lambda name: told([*chosen, name]))
        if told([*chosen, best]) == told(chosen):
            break
        chosen.append(best)
        left.remove(best)
    return chosen


def _is_compared(setting: str) -> bool:
    named = (setting, setting.partition(".")[0])
    return setting == _DRAINS or not (is_seed(setting) or any(each in _NOT_COMPARED for each in named))


def _value(run: ComparedRun, name: str) -> Any:
    return run.facts.get(name, run.settings.get(name))


def _is_within(setting: str, asked: set[str]) -> bool:
    parts = setting.split(".")
    return any(".".join(parts[:count]) in asked for count in range(1, len(parts) + 1))


def _differing(runs: Sequence[ComparedRun]) -> list[str]:
    """The settings that differ, the method first."""
    settings = sorted({name for run in runs for name in (*run.settings, *run.facts) if _is_compared(name)})
    differing = [name for name in settings if len({str(_value(run, name)) for run in runs}) > 1]
    return sorted(differing, key=lambda name: name != "method")


def _told(run: ComparedRun, shown: Sequence[str]) -> dict[str, str]:
    """The values of the settings that the run has, these by the last part of their names where that is enough."""
    last = [setting.rpartition(".")[2] for setting in shown]
    return {
        short if last.count(short) == 1 else setting: _shown(value)
        for setting, short in zip(shown, last, strict=True)
        if (value := _value(run, setting)) is not None
    }


def _shown(value: Any) -> str:
    return printable(str(value).lower() if isinstance(value, bool) else str(value))
