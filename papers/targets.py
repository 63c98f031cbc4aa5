"""The papers' experiments as they are run: which presets a name stands for, at which scale, and where results go."""

import math
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from papers.presets import FOLDER, IN_CHECKOUT, preset, presets
from pipetrain.engine.errors import ConfigError
from pipetrain.engine.failure import relative_to_cwd

FULL, SMALL = "full", "small"
EVERY_PAPER = "papers"
"""The name that stands for the experiments of all papers."""
OF_NO_PAPER = ("map/", "slowdown/", "messages/")
"""How the names of presets begin that are of no paper."""
_NUMBER = r"(?:\d+|[IVX]+)\b(?:\(\w\))?"
_PARTS = re.compile(rf"\b(table|fig)s?\.? ({_NUMBER}(?:(?:, | and | to ){_NUMBER})*)")
_ROMAN = {"I": "1", "II": "2", "III": "3", "IV": "4", "V": "5", "VI": "6", "VII": "7", "VIII": "8"}
_CONFIG_DIR = "--config-dir"
_COMPARE = "compare"
"""The first word of a round that is a `pipetrain compare`."""


@dataclass(frozen=True)
class ReproductionTarget:
    """One preset at one scale.

    Attributes:
        experiment: the preset, such as `pipeoptim/table4_alexnet`.
        scale: `full`, the paper's own size, or `small`, minutes on two cores.
    """

    experiment: str
    scale: str

    @property
    def settings(self) -> list[str]:
        """The words of the command line in addition to the preset."""
        if self.scale == FULL:
            return []
        return shlex.split(preset(self.experiment).remarks["small"])

    @property
    def minutes(self) -> float:
        """Estimated minutes of the small scale on two idle cores; infinite if there is none."""
        return float(preset(self.experiment).remarks.get("minutes", math.inf))

    @property
    def rounds(self) -> list["SweepRound"]:
        """The parts in which it is run, the most informative first; at the full scale a sweep is one part.

        A part that begins with a scale belongs to that one alone.
        """
        remark = preset(self.experiment).remarks.get("rounds", "")
        whole = self.scale == FULL and not remark.startswith(_COMPARE)
        parts = list(enumerate(map(shlex.split, [""] if whole else remark.split("|")), start=1))
        own = [(number, words[1:] if words[:1] == [self.scale] else words) for number, words in parts]
        return [SweepRound(self, number, words) for number, words in own if words[:1] not in ([FULL], [SMALL])]

    def words(self, runs: Path, narrowed: Sequence[str] = ()) -> list[str]:
        """The whole command, without `pipetrain`; a second one continues where the first was interrupted.

        Args:
            runs: the folder of the sweep.
            narrowed: words that leave less to sweep.
        """
        folder = [f"hydra.sweep.dir={runs}", "resume=auto"]
        return ["run", "--multirun", f"experiment={self.experiment}", *self.settings, *narrowed, *folder]

    def runs(self, outputs: Path) -> Path:
        """The folder of its runs."""
        return outputs / self.experiment / self.scale

    def results(self, results: Path) -> Path:
        """The folder of what is kept of it."""
        return results / self.experiment / self.scale


@dataclass(frozen=True)
class SweepRound:
    """A part of a target: a sweep, or a comparison that tunes learning rates.

    Attributes:
        target: what it is a part of.
        number: its place, from 1.
        settings: the words that leave only this part of the sweep.
    """

    target: ReproductionTarget
    number: int
    settings: Sequence[str]

    @property
    def name(self) -> str:
        """Name of its folder among those of the others."""
        return f"round-{self.number}" if len(self.target.rounds) > 1 else ""

    def runs(self, outputs: Path) -> Path:
        """The folder of the sweep or comparison."""
        return self.target.runs(outputs) / self.name

    @property
    def compares(self) -> bool:
        """True if it is a call of `pipetrain compare`, whose results are kept apart from those of sweeps."""
        return self.settings[:1] == [_COMPARE]

    def words(self, outputs: Path) -> list[str]:
        """The whole command, without `pipetrain`."""
        if not self.compares:
            return self.target.words(self.runs(outputs), self.settings)
        folder = ["-o", str(self.runs(outputs))]
        shared = [word for word in self.target.settings if word.partition("=")[0] not in {*self.given, "seed"}]
        return [_COMPARE, f"experiment={self.target.experiment}", *shared, *self.settings[1:], *folder]

    @property
    def given(self) -> Mapping[str, str]:
        """Setting -> its value or values, of those that it has in addition to the target's."""
        pairs = (word.partition("=") for word in self.settings if "=" in word and not word.startswith("-"))
        return {name: value for name, _, value in pairs}


def with_presets(words: Sequence[str], folder: str | None = None) -> list[str]:
    """The words of a command, and behind the first the folder of the presets.

    Args:
        words: without `pipetrain`.
        folder: how the folder is named; by default as from the working directory.
    """
    return [words[0], _CONFIG_DIR, folder or relative_to_cwd(FOLDER), *words[1:]]


def command_of(words: Sequence[str]) -> str:
    """The words of a command as a line for a shell."""
    return shlex.join(["pipetrain", *words])


def words_of(command: str) -> list[str]:
    """The words of such a line, without the folder of the presets, which older results do not name."""
    words = shlex.split(command)[1:]
    return [*words[:1], *words[3:]] if words[1:2] == [_CONFIG_DIR] else words


def rounds_of(targets: Sequence[ReproductionTarget]) -> list[SweepRound]:
    """The rounds of all targets in the order in which they are run: every first one before any second one."""
    return sorted((each for target in targets for each in target.rounds), key=lambda each: each.number)


def targets_of(name: str, scale: str) -> list[ReproductionTarget]:
    """The targets of a preset, of a table or figure such as `pipeoptim/table4`, or of whole papers, the cheapest first.

    Those of one experiment, which differ in a last word such as `_baseline`, stay together. At the small scale, those
    without one are left out.

    Args:
        name: its folder and name; `-` in place of `/` will do. `papers`: those of all papers, without `OF_NO_PAPER`. A
            table or figure without a preset of its own stands for the presets that show it.
        scale: `full` or `small`.

    Raises:
        ConfigError: there is none of that name, none of them has a small scale, or the scale is unknown.
    """
    if scale not in (FULL, SMALL):
        raise ConfigError(f"--scale {scale}: {SMALL} or {FULL}")
    found = presets_of(name)
    if not found:
        listed = f"pipetrain list experiments {_CONFIG_DIR} {IN_CHECKOUT}"
        raise ConfigError(f"reproduce {name}: no experiment of that name; {listed} shows them")
    there = [each for each in found if scale == FULL or has_small_scale(each)]
    if not there:
        raise ConfigError(f"reproduce {name} --scale {SMALL}: it has no small scale; use --scale {FULL}")
    return _cheapest_first([ReproductionTarget(each, scale) for each in there])


def has_small_scale(experiment: str) -> bool:
    """True if a preset has a small scale. It has none where that would repeat another's, or could show nothing."""
    return "small" in preset(experiment).remarks


def presets_of(name: str) -> list[str]:
    """The presets that a name stands for."""
    wanted = full_name(name)
    return [each for each in presets() if _is_of(each, wanted)] or [each for each in presets() if _shows(each, wanted)]


def full_name(name: str) -> str:
    """A name such as `zhang-table2` or, as a shell completes a folder, `zhang/` as presets have it."""
    name = name.rstrip("/")
    return name if "/" in name else name.replace("-", "/", 1)


def parts_of(source: str) -> set[str]:
    """The tables and figures that a text names: `table2` and `fig5` of "table II and figs 5(a)"."""
    found = set()
    for kind, numbers in _PARTS.findall(source):
        given = [_ROMAN.get(each, each) for each in re.findall(r"\d+|[IVX]+", numbers)]
        first, last = int(given[0]), int(given[-1])
        found |= {f"{kind}{each}" for each in (range(first, last + 1) if " to " in numbers else given)}
    return found


def _shows(experiment: str, wanted: str) -> bool:
    """True if the table or figure is one that the preset says it belongs to, under another name."""
    paper, _, part = wanted.partition("/")
    return experiment.startswith(f"{paper}/") and part in parts_of(preset(experiment).remarks["paper"])


def is_of_paper(experiment: str) -> bool:
    """True unless a preset is of the map of the field, of the slowdowns or of the formats of messages."""
    return not experiment.startswith(OF_NO_PAPER)


def _is_of(experiment: str, wanted: str) -> bool:
    if wanted == EVERY_PAPER:
        return is_of_paper(experiment)
    return experiment == wanted or experiment.startswith((f"{wanted}_", f"{wanted}/"))


def _cheapest_first(targets: Sequence[ReproductionTarget]) -> list[ReproductionTarget]:
    """Sorted by what an experiment takes with its companions."""
    first = {target.experiment: _first_of(target, targets) for target in targets}
    minutes = dict.fromkeys(first.values(), 0.0)
    for target in targets:
        minutes[first[target.experiment]] += target.minutes
    return sorted(targets, key=lambda target: (minutes[first[target.experiment]], first[target.experiment]))


def _first_of(target: ReproductionTarget, targets: Sequence[ReproductionTarget]) -> str:
    """The experiment that a target belongs to: the shortest name that is its own, or its beginning before a `_`."""
    own = f"{target.experiment}_"
    return min((each.experiment for each in targets if own.startswith(f"{each.experiment}_")), key=len)
