"""Settings and choices that the command line changes of a configuration that is there already."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException

from pipetrain.config.choices import all_names, section_for
from pipetrain.config.schema import TARGET, config_dir, schema
from pipetrain.config.suggestions import unknown_choice, unknown_setting
from pipetrain.errors import ConfigError


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

    @property
    def targets(self) -> Iterator[str]:
        """The path of code that it names, if it does."""
        if self.key.rsplit(".", 1)[-1] == TARGET:
            yield str(self.value)

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
            raise ConfigError(f"{word}: one value for one setting, such as dataset.root=/data")
        overrides.append(Override(word, each.key_or_group, each.value(), each.is_add() or each.is_force_add()))
    return overrides
