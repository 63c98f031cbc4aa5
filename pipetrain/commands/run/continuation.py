"""The command that goes on with a run, in its own directory."""

import os
import re
import shlex

from omegaconf import DictConfig

from pipetrain.failure import relative_to_cwd
from pipetrain.tracking.run_directory import RunDirectory

_REPLACED = ("resume=", "+resume=")
_PLAIN = re.compile(r"[\w/.:@%~+-]+")
"""Values that Hydra takes without quotes."""


def command_to_continue(run: RunDirectory, hydra: DictConfig) -> str:
    """What to type: the run's own overrides, its directory, and `resume=auto`.

    Args:
        run: the run directory.
        hydra: Hydra's own settings of the run.
    """
    overrides = [word for word in hydra.overrides.task if not word.startswith(_REPLACED)]
    sources = hydra.runtime.get("config_sources", [])
    flags = [f"--config-dir={each.path}" for each in sources if each.provider == "command-line"]
    words = [*flags, *overrides, f"hydra.run.dir={_value(relative_to_cwd(run.path))}", "resume=auto"]
    program = "torchrun ... -m pipetrain" if "RANK" in os.environ else "pipetrain"
    return f"{program} run {shlex.join(words)}"


def _value(text: str) -> str:
    return text if _PLAIN.fullmatch(text) else "'" + text.replace("'", "\\'") + "'"
