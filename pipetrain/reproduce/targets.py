"""The papers' experiments as they are run: which presets a name stands for, at which scale, and where results go."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pipetrain.config.choices import choice_of, names_of
from pipetrain.errors import ConfigError

FULL, SMALL = "full", "small"


@dataclass(frozen=True)
class Target:
    """One preset at one scale.

    Attributes:
        experiment: the preset, such as `pipeoptim/table4_alexnet`.
        scale: `full`, the paper's own size, or `small`, minutes on two cores.
    """

    experiment: str
    scale: str

    @property
    def settings(self) -> list[str]:
        """The words of the command line beside the preset."""
        if self.scale == FULL:
            return []
        return shlex.split(choice_of("experiment", self.experiment).remarks["small"])

    def words(self, runs: Path) -> list[str]:
        """The whole command, without `pipetrain`; a second one goes on where the first was broken off."""
        folder = [f"hydra.sweep.dir={runs}", "resume=auto"]
        return ["run", "--multirun", f"experiment={self.experiment}", *self.settings, *folder]

    def runs(self, outputs: Path) -> Path:
        """The folder of the sweep."""
        return outputs / self.experiment / self.scale

    def results(self, results: Path) -> Path:
        """The folder of what is kept of it."""
        return results / self.experiment / self.scale


def targets_of(name: str, scale: str) -> list[Target]:
    """The targets of a preset, of a table or figure such as `pipeoptim/table4`, or of a whole paper.

    Args:
        name: its folder and name; `-` in place of `/` will do.
        scale: `full` or `small`.

    Raises:
        ConfigError: there is none of that name, or the scale is unknown.
    """
    if scale not in (FULL, SMALL):
        raise ConfigError(f"--scale {scale}: {SMALL} or {FULL}")
    wanted = name if "/" in name else name.replace("-", "/", 1)
    found = [each for each in presets() if each == wanted or each.startswith((f"{wanted}_", f"{wanted}/"))]
    if not found:
        raise ConfigError(f"reproduce {name}: no experiment of that name; pipetrain list experiments shows them")
    return [Target(each, scale) for each in found]


def presets() -> Sequence[str]:
    """The presets of the papers' experiments and of the map of the field."""
    return [name for name in names_of("experiment") if "/" in name]
