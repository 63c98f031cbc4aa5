"""Errors of Hydra, OmegaConf and the YAML reader, explained in one line with a working alternative."""

import re
from collections.abc import Sequence

from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf import MISSING
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException
from yaml import MarkedYAMLError

from pipetrain.engine.errors import as_configured
from pipetrain.runner.config.choices import names_of
from pipetrain.runner.config.reference import groups, sections, settings_of_choice
from pipetrain.runner.config.schema import TARGET
from pipetrain.runner.config.suggestions import did_you_mean, unknown_choice, unknown_setting

CONFIGURATION_ERRORS = (HydraException, OmegaConfBaseException, MarkedYAMLError)
_KINDS = {"Integer": "a whole number", "Float": "a number", "bool": "true or false"}
_PACKAGES = {"submitit_slurm": "submitit", "submitit_local": "submitit"}


def explained(error: BaseException) -> str:
    """The message of one of CONFIGURATION_ERRORS, in our words."""
    if isinstance(error, MissingMandatoryValue) and error.full_key is not None:
        return f"{error.full_key} is not set; {_wanted(error.full_key)}"
    if isinstance(error, MissingConfigException) and error.missing_cfg_file is not None:
        return _missing_choice(error)
    if isinstance(error, OverrideParseException):
        missing = "missing EQUAL" in str(error.message)
        wrong = "cannot be read; quote a value with special characters: 'name=\"a, b\"'"
        return f"{error.override}: {_without_value(str(error.override)) if missing else wrong}"
    if isinstance(error, MarkedYAMLError) and error.problem_mark is not None:
        mark = error.problem_mark
        return f"{mark.name.removeprefix('file://')}, line {mark.line + 1}: {error.problem}"
    return _in_its_file(error)


def _wanted(name: str) -> str:
    """The value that a setting without a default needs, from the comments of the choices."""
    section, _, option = name.rpartition(".")
    if option == TARGET:
        return f"name your function or class: {name}=mylib.Thing"
    settings = (setting for choice in names_of(section) for setting in settings_of_choice(section, choice))
    meaning = next((each.meaning for each in settings if each.name == name and each.default == MISSING), "")
    return f"give it {meaning}" if meaning else f"give it a value: {name}=..."


def _missing_choice(error: MissingConfigException) -> str:
    group, _, name = str(error.missing_cfg_file).rpartition("/")
    if group.split("/")[0] == "experiment":
        return _missing_preset(str(error.missing_cfg_file).removeprefix("experiment/"), error.options or ())
    if group in ("hydra/launcher", "hydra/sweeper"):
        kind = group.removeprefix("hydra/")
        return (
            f"{group}={name} is not installed; it may come with: pip install hydra-{_PACKAGES.get(name, name)}-{kind}"
        )
    if group == "partition" and name.isdigit():
        return f"{group}={name}: no such {group}; did you mean {group}.stages={name}?"
    options = [each for each in error.options or () if each]
    reason = unknown_choice(group, name, [each for each in options if each != "custom"])
    own = "custom" in options and "did you mean" not in reason
    return f"{group}={name}: {reason}" + f"; your own: {group}=custom {group}.{TARGET}=mylib.Thing" * own


def _missing_preset(name: str, options: Sequence[str]) -> str:
    """The message for a preset, which may be in a folder; `options` are those that are in none."""
    if name == "null":
        return "experiment=null: leave it out; a run needs no experiment"
    names = names_of("experiment")
    folder = name.partition("/")[0]
    if inside := [each for each in names if each.startswith(f"{folder}/")]:
        if name == folder:
            return f"experiment={name}: a folder of presets; choose from {', '.join(inside)}"
        return f"experiment={name}: {unknown_choice('experiment', name, inside)}"
    if near := did_you_mean(name, [*names, *options]):
        return f"experiment={name}: no such experiment{near}"
    first = sorted({*options, *(each.partition("/")[0] + "/" * ("/" in each) for each in names)} - {""})
    return (
        f"experiment={name}: no such experiment; choose from {', '.join(first)}; "
        "pipetrain list experiments describes all"
    )


def _without_value(word: str) -> str:
    if word in groups():
        return f"takes a choice, {word}=NAME; `pipetrain list {word}` describes them"
    setting = next((each for section in sections() for each in section.settings if each.name == word), None)
    if setting is not None:
        return f"takes a value, such as {word}={as_configured(setting.default)}: {setting.meaning}"
    meant = [f"{group}={word}" for group in groups() if word in names_of(group)]
    question = f"; did you mean {' or '.join(meant)}?" if meant else ""
    return f"neither a setting, NAME=VALUE, nor a choice, GROUP=CHOICE{question}"


def _in_its_file(error: BaseException) -> str:
    """The message, after the name of the user's own file if the error is in one."""
    cause = f"\n{error.__cause__}" if isinstance(error.__cause__, OmegaConfBaseException) else ""
    text = f"{error}{cause}".split("Config search path")[0]
    file, text = match.groups() if (match := re.match(r"In '(.+?)': (.*)", text, re.DOTALL)) else ("config", text)
    message = _reworded(text) or text.split("\n    full_key")[0].rstrip()
    if error.__cause__ is not None and not cause:
        message = f"{message}: {str(error.__cause__).splitlines()[0]}"
    return message if file == "config" else f"{file}.yaml: {message}"


def _reworded(text: str) -> str | None:
    for pattern in _UNKNOWN:
        if match := re.search(pattern, text, re.DOTALL):
            return unknown_setting(match["name"], match.groupdict().get("word"))
    for pattern, message in _MESSAGES.items():
        if match := re.search(pattern, text, re.DOTALL):
            parts = match.groupdict()
            return message.format(**{**parts, "kind": _KINDS.get(parts.get("kind", ""), "another value")})
    return None


_UNKNOWN = (
    r"Could not override '(?P<name>[^']+)'\.\s+To append to your config use \+(?P<word>[^\n]+)",
    r"Could not (?:override|delete from config\.) '(?P<name>[^']+)'",
    r"Key '[^']+' (?:not in|is not in) .*full_key: (?P<name>\S+)",
)
_MESSAGES = {
    r"Ambiguous value for argument '(?P<word>.+?)'\n": (
        "{word}: several values; --multirun makes a run of each, and in brackets they are one list"
    ),
    r"BasicSweeper does not support sweep type": (
        "interval(...): works only with a sweeper that searches, such as hydra/sweeper=optuna: docs/tuning.md"
    ),
    r"An item is already at '(?P<name>.+?)'": "+{name}: is a setting already; leave out the +",
    r"Multiple values for (?P<name>\S+)\.": "+{name}: is chosen already; leave out the +",
    r"Value '.*?' of type 'dict' could not .*full_key: (?P<name>\S+)": (
        "{name}: has a value and no settings of its own; {name}=VALUE"
    ),
    r"Value '(?P<value>.*?)' of type '.*?' could not be converted to (?P<kind>\w+).*full_key: (?P<name>\S+)": (
        "{name}={value}: {kind} is needed"
    ),
    r"Value '(?P<value>.*?)' is not a valid (?P<kind>\w+).*full_key: (?P<name>\S+)": "{name}={value}: {kind} is needed",
    r"field '(?P<name>.+?)' is not Optional": "{name}=null: a value is needed",
    r"override (?P<word>[^\n]+)\n.* is not a ListConfig": "{word}: a list is needed, in brackets, such as [2]",
    r"override ~(?P<name>[^=\n]+).* does not support deletion": (
        "~{name}: cannot be left out; give it a value: {name}=VALUE"
    ),
    r"Invalid type assigned: .*value: (?P<value>.*?)\n.*full_key: (?P<name>\S+)": (
        "{name}={value}: is a section, whose settings are given one by one: {name}.NAME=VALUE"
    ),
    r"Interpolation key '(?P<key>.+?)' not found.*full_key: (?P<name>\S+)": (
        "{name}=${{{key}}}: there is no {key} to take it from"
    ),
    r"raised while resolving interpolation: \"?(?P<why>.*?)\"?\n.*full_key: (?P<name>\S+)": "{name}: {why}",
    r"Unsupported interpolation type (?P<key>\S+)\n.*full_key: (?P<name>\S+)": (
        "{name}=${{{key}:...}}: there is no resolver {key}; oc.env reads an environment variable"
    ),
}
"""Pattern of a message of Hydra's or OmegaConf's -> our wording."""
