"""Names that are like one that does not exist: the question "did you mean ...?" of error messages."""

from collections.abc import Iterable, Mapping, Sequence
from difflib import SequenceMatcher
from functools import cache

from pipetrain.runner.config.choices import names_of
from pipetrain.runner.config.reference import groups, sections, settings_of_choice

_LIKENESS = 0.72
"""Below it, names are not offered: `amp` is not a misspelled `gamma`."""
_PART = 0.8
"""Likeness of a name to one that begins with it or has it as a word: `steps` and `train.max_steps`."""
_MARGIN = 0.1
_MOST = 3
_NONE: Mapping[str, str] = {}


def did_you_mean(name: str, known: Iterable[str], elsewhere: Mapping[str, str] = _NONE) -> str:
    """A question to append to a message; empty if no known name is similar to `name`.

    `elsewhere` maps names in other programs to the last part of the name here.
    """
    near = nearest_names(name, known, elsewhere)
    return f"; did you mean {' or '.join(near)}?" if near else ""


def unknown_choice(group: str, name: str, known: Sequence[str], elsewhere: Mapping[str, str] = _NONE) -> str:
    """The message for a choice that a group does not have: with those that are like it, or else with all."""
    choices = did_you_mean(name, known, elsewhere) or f"; choose from {', '.join(known)}"
    return f"no such {group}{choices}"


def nearest_names(name: str, known: Iterable[str], elsewhere: Mapping[str, str] = _NONE) -> list[str]:
    """The known names most like `name`, the closest first: at most three, and nearly as close as the first.

    Dotted names are alike where their last parts are: `lr` is `optimizer.lr`, and `trian.epochs` is `train.epochs`.
    """
    section, _, last = name.rpartition(".")
    here = f"{section}." * bool(section) + elsewhere.get(last, last)
    likeness = {each: _likeness(here, each) for each in dict.fromkeys(known)}
    best = max(likeness.values(), default=0.0)
    near = [each for each in likeness if each != name and likeness[each] >= max(_LIKENESS, best - _MARGIN)]
    return sorted(near, key=lambda each: -likeness[each])[:_MOST]


def _likeness(name: str, other: str) -> float:
    """Likeness from 0 to 1, ignoring case; sections of dotted names count only if the last parts are equal."""
    if name.lower() == other.lower():
        return 1.0
    (section, _, last), (other_section, _, other_last) = name.rpartition("."), other.rpartition(".")
    if section in ("", other_section):
        part = len(last) > 3 and (other_last.startswith(last) or last in other_last.split("_"))
        return max(_PART if part else 0.0, SequenceMatcher(None, last, other_last).ratio())
    return 0.8 + 0.2 * SequenceMatcher(None, section, other_section).ratio() if last == other_last else 0.0


_ELSEWHERE = {
    "learning_rate": "lr",
    "grad_clip": "clip_norm",
    "max_grad_norm": "clip_norm",
    "num_workers": "workers",
    "wd": "weight_decay",
}
"""Name of a setting in other programs -> name here."""


def unknown_setting(name: str, given: str | None = None) -> str:
    """The message for a setting that does not exist, in the word `given`, such as `lr=0.1`."""
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
