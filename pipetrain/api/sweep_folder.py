"""Names of the folders of a sweep's runs."""

import re

from pipetrain.config.schema import TARGET

_LONGEST_NAME = 80
_UNSAFE = re.compile(r"[^\w.=+-]+")


def folder_name(number: int, differing: str) -> str:
    """The folder of a run of a sweep, such as `3_pipedream_lr=0.1_seed=0`; its number alone if that gets too long.

    Args:
        number: of the run.
        differing: the settings that differ, such as `method=pipedream optimizer.lr=0.1 seed=0`.
    """
    # nearly every sweep varies `method=`, whose value says enough
    words = sorted(differing.split(" "), key=lambda word: not word.startswith("method="))
    short = [word.removeprefix("method=").lstrip("+") for word in words if word]
    name = "_".join([str(number), *(_UNSAFE.sub("-", _without_section(word)) for word in short)])
    return name if len(name) <= _LONGEST_NAME else str(number)


def _without_section(word: str) -> str:
    setting, equals, value = word.partition("=")
    last = setting.rpartition(".")[2]
    if last == TARGET:
        return value.rpartition(".")[2]
    return f"{last}={value}" if equals else word
