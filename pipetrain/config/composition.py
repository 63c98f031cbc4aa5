"""The settings that words of the command line choose, composed by Hydra without a run. No torch here."""

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from omegaconf import OmegaConf

from pipetrain.config.schema import config_dir, register_schema
from pipetrain.config.settings import Settings, choices_made, settings_of
from pipetrain.errors import ConfigError


def with_choices_of(folder: Path | None, words: Sequence[str]) -> list[str]:
    """The words, and one that has Hydra look for choices in the folder of `--config-dir` as well.

    Raises:
        ConfigError: there is no such folder.
    """
    if folder is None:
        return list(words)
    if not folder.is_dir():
        raise ConfigError(f"--config-dir {folder}: there is no such folder")
    return [*words, f"hydra.searchpath=['file://{folder.resolve()}']"]


def overrides_of(words: Sequence[str]) -> list[Override]:
    """The words in Hydra's grammar, read by the loader of the configuration, which knows what `glob` stands for."""
    running = GlobalHydra.instance()
    if running.is_initialized():
        return OverridesParser.create(running.config_loader()).parse_overrides(list(words))
    with initialize_config_dir(str(config_dir()), version_base="1.3"):
        return overrides_of(words)


def combinations(overrides: Sequence[str]) -> Iterator[list[str]]:
    """The overrides of every member of a sweep such as `method=gpipe,pipedream`, in Hydra's grammar and order."""
    choices = [
        [f"{each.get_key_element()}={value}" for value in each.sweep_string_iterator()]
        if each.is_sweep_override()
        else [str(each.input_line)]
        for each in overrides_of(overrides)
    ]
    yield from (list(chosen) for chosen in itertools.product(*choices))


def composed(overrides: Sequence[str]) -> Settings:
    """What `pipetrain run` makes of these overrides; open groups may lack what a timeline does not need."""
    register_schema()
    with initialize_config_dir(str(config_dir()), version_base="1.3"):
        whole = compose("config", list(overrides), return_hydra_config=True)
    choices = choices_made(whole.hydra.runtime.choices)
    OmegaConf.set_struct(whole, value=False)
    del whole["hydra"]
    return settings_of(whole, choices, missing_ok=True)


def composed_one(words: Sequence[str], folder: Path | None = None) -> Settings:
    """The same of words that are no sweep, with the choices in a folder of the user's own.

    Raises:
        ConfigError: they are a sweep, or there is no such folder.
    """
    chosen = list(itertools.islice(combinations(words), 2))
    if len(chosen) > 1:
        raise ConfigError(f"{' '.join(words)}: a sweep; one value of each setting is needed")
    return composed(with_choices_of(folder, words))
