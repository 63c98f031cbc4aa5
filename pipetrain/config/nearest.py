"""What to say of a setting that does not exist: the nearest that do."""

from collections.abc import Sequence
from functools import cache

from pipetrain.config.choices import names_of
from pipetrain.config.likeness import did_you_mean
from pipetrain.config.reference import groups, sections, settings_of_choice

_ELSEWHERE = {
    "learning_rate": "lr",
    "grad_clip": "clip_norm",
    "max_grad_norm": "clip_norm",
    "num_workers": "workers",
    "wd": "weight_decay",
}
"""What other programs call a setting -> its name here."""


def unknown_setting(name: str, given: str | None = None) -> str:
    """The message for a setting that does not exist.

    Args:
        name: without a leading `+`.
        given: the whole word, such as `lr=0.1`.
    """
    shown, (section, _, option) = given or name, name.partition(".")
    if owners := [f"{section}={choice}" for choice in names_of(section) if name in _settings(section, choice)]:
        return f"{shown}: not a setting of the chosen {section}; it is one of {', '.join(owners)}"
    if near := did_you_mean(name, known_names(), _ELSEWHERE):
        return f"{shown}: no such setting{near}"
    if section in groups() and option:
        return f"{shown}: not a setting of the chosen {section}; if its target takes it, write +{shown.lstrip('+')}"
    flag = "--hydra-help" if name.startswith("hydra") else "--help"
    return f"{shown}: no such setting; `pipetrain run {flag}` lists them"


@cache
def known_names() -> list[str]:
    """Settings that every run has, then groups and sections, then the settings of choices."""
    own = [setting.name for section in sections() for setting in section.settings]
    chosen = (name for group in groups() for choice in names_of(group) for name in _settings(group, choice))
    return [*own, *groups(), *(section.name for section in sections() if section.name), *chosen]


@cache
def _settings(group: str, choice: str) -> Sequence[str]:
    return [setting.name for setting in settings_of_choice(group, choice)] if group != "experiment" else []
