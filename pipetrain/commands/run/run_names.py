"""What the runs of a sweep are called: the settings that differ between them."""

import re
from collections.abc import Mapping, Sequence
from math import prod

from hydra.core.override_parser.types import Override

from pipetrain.config.composition import overrides_of
from pipetrain.config.schema import TARGET

_LONGEST = 80
_UNSAFE = re.compile(r"[^\w.=+-]+")


def folder_name(number: int, differing: str) -> str:
    """The folder of a run of a sweep, such as `3_pipedream_lr=0.1_seed=0`; its number alone where that gets too long.

    Args:
        number: of the run, which no other has.
        differing: the settings that differ, such as `method=pipedream optimizer.lr=0.1 seed=0`.
    """
    # `method=` is what nearly every sweep begins with, and its value says enough
    words = sorted(differing.split(" "), key=lambda word: not word.startswith("method="))
    short = [word.removeprefix("method=").lstrip("+") for word in words if word]
    name = "_".join([str(number), *(_UNSAFE.sub("-", _without_section(word)) for word in short)])
    return name if len(name) <= _LONGEST else str(number)


def _without_section(word: str) -> str:
    setting, equals, value = word.partition("=")
    last = setting.rpartition(".")[2]
    if last == TARGET:
        return value.rpartition(".")[2]
    return f"{last}={value}" if equals else word


def constant(words: Sequence[str], swept: Mapping[str, object]) -> list[str]:
    """The settings, of those given on the command line, that are the same in all runs.

    Args:
        words: the overrides of the sweep.
        swept: what the sweeper itself varies, by name.
    """
    overrides = overrides_of(words)
    same = [each.key_or_group for each in overrides if not each.is_sweep_override()]
    given = {each.key_or_group for each in overrides}
    return [*same, *(name for name, value in swept.items() if name not in given and not _varies(name, value))]


def number_of_runs(words: Sequence[str], swept: Mapping[str, object]) -> int | None:
    """How many runs Hydra's own sweeper makes; None where a word asks for what only another sweeper can do."""
    values = {name: f"{name}={value}" for name, value in swept.items()}
    parsed = overrides_of([*values.values(), *words])
    last: dict[str, Override] = {each.key_or_group: each for each in parsed}
    if any(each.is_sweep_override() and not each.is_discrete_sweep() for each in last.values()):
        return None
    return prod(len(list(each.sweep_string_iterator())) for each in last.values() if each.is_sweep_override())


def _varies(name: str, value: object) -> bool:
    return overrides_of([f"{name}={value}"])[0].is_sweep_override()
