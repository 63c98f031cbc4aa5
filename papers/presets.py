"""The presets of the papers' experiments, which are in `papers/conf`, a folder for `--config-dir`."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from pipetrain.runner.config.choices import Choice, choice_of, group_overrides_of, names_of
from pipetrain.runner.config.composition import Composition, settings_of, with_choices_of
from pipetrain.runner.config.settings import Settings

FOLDER = Path(__file__).resolve().with_name("conf")
"""What `--config-dir` is given."""
IN_CHECKOUT = "papers/conf"
"""The folder as commands name it in a checkout."""


def presets() -> Sequence[str]:
    """Names such as `zhang/fig6_resnet20`: of the papers' experiments, of the map of the field and of the slowdowns."""
    return names_of("experiment", FOLDER)


def preset(name: str) -> Choice:
    """A preset: its summary, remarks and settings."""
    return choice_of("experiment", name, FOLDER)


def choices_in(name: str) -> Mapping[str, str]:
    """Group -> choice that a preset makes."""
    return group_overrides_of("experiment", name, FOLDER)


def composition(words: Sequence[str]) -> Composition:
    """The configuration of `pipetrain run` with these words, among them `experiment=` and a preset of the papers."""
    return Composition.of(with_choices_of(FOLDER, words))


def composed(words: Sequence[str]) -> Settings:
    """The settings of that configuration; open groups may lack mandatory values."""
    whole = composition(words)
    return settings_of(whole.config, whole.choices, missing_ok=True)
