"""Errors of Hydra, OmegaConf and the YAML reader, shortened to one line that names the setting."""

import re
from collections.abc import Sequence

from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf import MISSING
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException
from yaml import MarkedYAMLError

from pipetrain.engine.failure import relative_to_cwd
from pipetrain.runner.config.choices import names_of, papers_folder
from pipetrain.runner.config.reference import groups, sections, settings_of_choice
from pipetrain.runner.config.schema import TARGET
from pipetrain.runner.config.suggestions import did_you_mean, nearest_names, unknown_choice, unknown_setting

CONFIGURATION_ERRORS = (HydraException, OmegaConfBaseException, MarkedYAMLError)
_UNKNOWN = (
    r"Could not override '(?P<name>[^']+)'\.\s+To append to your config use \+(?P<word>[^\n]+)",
    r"Could not (?:override|delete from config\.) '(?P<name>[^']+)'",
    r"Key '[^']+' (?:not in|is not in) .*full_key: (?P<name>\S+)",
)
"""Messages about a setting that does not exist."""


def explained(error: BaseException) -> str:
    """The message of one of CONFIGURATION_ERRORS, without the library's internals."""
    if isinstance(error, MissingMandatoryValue) and error.full_key is not None:
        return f"{error.full_key} is not set; {_wanted(error.full_key)}"
    if isinstance(error, MissingConfigException) and error.missing_cfg_file is not None:
        return _missing_choice(error)
    if isinstance(error, OverrideParseException):
        return _unparsed(str(error.override), str(error.message))
    if isinstance(error, MarkedYAMLError) and error.problem_mark is not None:
        mark = error.problem_mark
        return f"{mark.name.removeprefix('file://')}, line {mark.line + 1}: {error.problem}"
    return _shortened(error)


def _unparsed(word: str, reason: str) -> str:
    if "missing EQUAL" not in reason:
        return f"{word}: cannot be parsed; quote a value with special characters: 'name=\"a, b\"'"
    meant = [f"{group}={word}" for group in groups() if word in names_of(group)]
    return f"{word}: must be NAME=VALUE" + f"; did you mean {' or '.join(meant)}?" * bool(meant)


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
    if group.partition("/")[0] == "experiment":  # a preset may be in a folder
        return _missing_preset(str(error.missing_cfg_file).removeprefix("experiment/"), error.options or ())
    if group == "partition" and name.isdigit():
        return f"{group}={name}: no such {group}; did you mean {group}.stages={name}?"
    return f"{group}={name}: {unknown_choice(group, name, [each for each in error.options or () if each])}"


def _missing_preset(name: str, options: Sequence[str]) -> str:
    """The message for a preset that is not found, among whose neighbors in its folder the `options` are."""
    inside = name.rpartition("/")[0]
    near = did_you_mean(name, [*names_of("experiment"), *(f"{inside}/{each}".lstrip("/") for each in options)])
    if not near and (folder := papers_folder()) is not None:
        known = names_of("experiment", folder)
        like = [name] if name in known else nearest_names(name, known)
        near = f"; did you mean --config-dir {relative_to_cwd(folder)} experiment={like[0]}?" if like else ""
    return f"experiment={name}: no such experiment{near or '; `pipetrain list experiments` describes all'}"


def _shortened(error: BaseException) -> str:
    """The message with the setting first, after the name of the user's own file if the error is in one."""
    text, cause = str(error).split("Config search path")[0], str(error.__cause__ or "")
    file, text = match.groups() if (match := re.match(r"In '(.+?)': (.*)", text, re.DOTALL)) else ("config", text)
    whole = f"{text}\n{cause}"
    for pattern in _UNKNOWN:
        if match := re.search(pattern, whole, re.DOTALL):
            message = unknown_setting(match["name"], match.groupdict().get("word"))
            break
    else:
        text, cause = (each.partition("\n    full_key")[0].rstrip() for each in (text, cause))
        if " is not a subclass of " in cause and (match := re.search(r" (\w+)=", text)):
            inside = [setting.name for each in sections() if each.name == match[1] for setting in each.settings]
            cause = f"{match[1]} is a section of settings" + f", such as {inside[0]}=..." * bool(inside)
        message = ": ".join(filter(None, (text.removeprefix("Error merging override "), cause.partition("\n")[0])))
        key = re.search(r"full_key: (\S+)", whole)
        if key and key[1] not in message:
            message = f"{key[1]}: {message}"
    return message if file == "config" else f"{file}.yaml: {message}"
