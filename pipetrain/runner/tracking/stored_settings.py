"""The settings of a run, read back from its directory, with changes on top; or listed by name."""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException

from pipetrain.engine.errors import ConfigError, one_line
from pipetrain.runner.config.choices import all_names, choices_of, section_for
from pipetrain.runner.config.composition import settings_of
from pipetrain.runner.config.hydra_errors import CONFIGURATION_ERRORS, explained
from pipetrain.runner.config.instantiate import OBJECT
from pipetrain.runner.config.schema import TARGET, config_dir, leaves, schema
from pipetrain.runner.config.settings import Settings
from pipetrain.runner.config.suggestions import known_names, unknown_choice, unknown_setting
from pipetrain.runner.tracking.run_directory import RunDirectory

_LIBRARIES = {
    "loss": re.compile(r"torch\.nn\.[A-Z]\w*Loss"),
    "metrics": re.compile(r"torchmetrics\.(classification|regression)\.[A-Z]\w*"),
}
"""Section -> trusted targets of libraries, which are classes that only compute."""
_DOWNLOAD = "download"
"""Setting of data sets that fetch their files."""


@dataclass(frozen=True)
class Override:
    """A change, such as `dataset=mnist`, `dataset.root=/data` or `+model.width=32`, which adds a setting."""

    text: str
    key: str
    value: Any
    adds: bool

    @property
    def chooses(self) -> bool:
        """True if it makes a choice rather than set a value."""
        return isinstance(self.value, str) and (config_dir() / self.key).is_dir()

    def apply(self, config: DictConfig, model: str = "") -> None:
        """Changes the configuration of a run; the model changes some settings of choices.

        Raises:
            ConfigError: it has no such setting, or the group no such choice.
        """
        if self.chooses:
            if self.value not in (names := sorted(all_names(self.key))):
                raise ConfigError(f"{self.text}: {unknown_choice(self.key, self.value, names)}")
            config[self.key] = OmegaConf.merge(schema()[self.key], section_for(model, self.key, self.value))
            return
        try:
            OmegaConf.update(config, self.key, self.value, merge=True, force_add=self.adds)
        except (ConfigKeyError, ConfigAttributeError) as error:
            raise ConfigError(unknown_setting(self.key, self.text)) from error
        except OmegaConfBaseException as error:
            raise ConfigError(f"{self.text}: {str(error).splitlines()[0]}") from error


def parse_overrides(words: Sequence[str]) -> list[Override]:
    """The overrides that the words are in Hydra's grammar.

    Raises:
        ConfigError: one deletes a setting, or has several values.
        HydraException: one is not of that grammar.
    """
    overrides = []
    for word, each in zip(words, OverridesParser.create().parse_overrides(list(words)), strict=True):
        if each.is_delete() or each.is_sweep_override():
            raise ConfigError(f"{word}: must set one setting to one value, such as dataset.root=/data")
        overrides.append(Override(word, each.key_or_group, each.value(), each.is_add() or each.is_force_add()))
    return overrides


def check_read(overrides: Sequence[Override], sections: Sequence[str], names: Sequence[str]) -> None:
    """Raises a ConfigError for an override outside these sections and names, which an evaluation reads."""
    for override in overrides:
        if override.key in names or override.key.split(".")[0] in sections:
            continue
        if override.key not in known_names():
            raise ConfigError(unknown_setting(override.key, override.text))
        raise ConfigError(f"{override.text}: not read by an evaluation, which reads {', '.join((*sections, *names))}")


def check_targets(config: Mapping[str, Any], sections: Collection[str], asked: Collection[str], where: str) -> None:
    """Raises a ConfigError for a target in `sections`, at any depth, that is neither pipetrain's own nor `asked` for.

    A path below `pipetrain.` is not enough: `pipetrain.runner.training.checkpoint.store.shutil.rmtree` is one, too.
    """
    trusted = set(asked)
    for section in sections:
        for group in ("schedule", "method") if section == "phases" else (section,):
            trusted.update(path for choice in choices_of(group) for _, path in _targets(choice.content, group))
    for section in sections:
        library = _LIBRARIES.get(section)
        for setting, path in _targets(config[section], section):
            own = path in trusted or path.startswith(OBJECT)  # which nothing calls
            if not own and (library is None or library.fullmatch(path) is None):
                raise ConfigError(
                    f"{where}: {setting}={path} is not pipetrain's own code; if you trust it, add --trust, or "
                    "trust=True in Python"
                )


def _targets(content: Any, setting: str) -> Iterator[tuple[str, str]]:
    """The targets in a section at any depth: what the setting is called, and its path."""
    for name, value in leaves(content, setting, into_lists=True):
        if TARGET in re.split(r"[.[]", name):
            yield name, str(value)


def _harmless_config(run: RunDirectory) -> DictConfig:
    """The configuration of a run, in which nothing runs code or downloads."""
    config = run.stored_config()
    for setting, value in leaves(OmegaConf.to_container(config, resolve=False), into_lists=True):
        if isinstance(value, str) and "${" in value:  # it was written resolved
            raise ConfigError(f"{run.config}: {setting}={value}: must be a value, not an interpolation")
        if setting.rpartition(".")[2] == _DOWNLOAD:  # its path may be anywhere; the reader decides
            OmegaConf.update(config, setting, value=False)
    config.setdefault("metrics", {})  # a damaged file may have none
    OmegaConf.set_struct(config, value=True)
    OmegaConf.set_struct(config.metrics, value=False)
    return config


def stored_settings(
    run: RunDirectory, calls: Sequence[str], overrides: Sequence[Override] = (), *, trust: bool = False
) -> Settings:
    """The settings of a run directory, which may be untrusted, with overrides; only these can make it download.

    Targets of the sections in `calls` will be called; `trust` is True if they may be others than pipetrain's own.

    Raises:
        ConfigError: the configuration is missing or damaged, an override is wrong, or a target is not trusted.
    """
    config = _harmless_config(run)
    choices = run.choices()
    for override in sorted(overrides, key=lambda each: not each.chooses):  # a choice replaces its whole section
        override.apply(config, choices.get("model", ""))
        if override.chooses:
            choices[override.key] = override.value
    try:
        settings = settings_of(config, choices)
    except Exception as error:  # a damaged file may raise any error
        if overrides and isinstance(error, ConfigError):
            raise
        words = " ".join(override.text for override in overrides)
        reason = explained(error) if isinstance(error, CONFIGURATION_ERRORS) else str(error)
        raise ConfigError(f"{words or run.config}: {one_line(reason)}") from error
    if not trust:
        asked = [str(each.value) for each in overrides if each.key.rpartition(".")[2] == TARGET]
        check_targets(settings.stored, calls, asked, str(run.config))
    return settings


def values_set(config: Mapping[str, Any], choices: Mapping[str, str]) -> dict[str, Any]:
    """Every choice and every value of a configuration, by its name on the command line; nulls are left out.

    Targets are left out as well, as choices name them, except for the classes of objects that a program gave.
    """
    made = {group: choice for group, choice in choices.items() if choice != "None"}
    return {**made, **dict(_values(config, ""))}


def _values(section: Mapping[str, Any], above: str) -> Iterator[tuple[str, Any]]:
    for name, value in leaves(section, above):
        if isinstance(value, list) and value and isinstance(value[0], Mapping):
            yield from _values({str(number): each for number, each in enumerate(value)}, name)
        elif value is not None and (name.rpartition(".")[2] != TARGET or str(value).startswith(OBJECT)):
            yield name, value if isinstance(value, bool | int | float | str) else str(value)
