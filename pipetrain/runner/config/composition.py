"""Configurations, composed by Hydra or read back, turned into settings. No torch here."""

import contextlib
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any, Self

from hydra import compose, initialize_config_dir
from hydra.conf import HydraConf
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, Quote, QuotedString
from hydra.errors import MissingConfigException
from hydra.version import VersionBase
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import ConfigAttributeError, ConfigKeyError

from pipetrain.engine.errors import ConfigError, as_configured
from pipetrain.runner.config.checks import check
from pipetrain.runner.config.choices import all_names, check_own_folder, with_own_names
from pipetrain.runner.config.installed import register_configuration
from pipetrain.runner.config.instantiate import Target
from pipetrain.runner.config.messages import MessageSettings, chosen_by, drop_replaced, expand_messages, with_names
from pipetrain.runner.config.optimizer import OptimizerSettings
from pipetrain.runner.config.phases import check_read, expand_phases, phases_of
from pipetrain.runner.config.reference import groups
from pipetrain.runner.config.schema import TARGET, Config, ReplicasConfig, config_dir, leaves, schema
from pipetrain.runner.config.settings import DatasetSettings, MetricSettings, ModelSettings, ReplicaSettings, Settings
from pipetrain.runner.config.suggestions import unknown_setting

_OF_REPLICAS = [each.name for each in fields(ReplicasConfig)]
_SECTIONS = frozenset(each.name for each in fields(Config) if is_dataclass(each.default_factory))
_FOLDERS = ("hydra.run.dir", "hydra.sweep.dir")
_OPEN = (
    "dataset", "model", "partition", "schedule", "method", "optimizer", "lr_schedule", "loss", "metrics", "callbacks",
    "messages", "phases",
)  # fmt: skip


def choices_made(choices: Mapping[Any, Any]) -> dict[str, str]:
    """The choices that Hydra recorded, without those of its own groups and the packages of models."""
    return {str(group): str(choice) for group, choice in choices.items() if not set("/@") & set(str(group))}


def check_hydra(hydra: DictConfig) -> None:
    """Raises a ConfigError for the first setting of Hydra's own section that Hydra does not read."""
    plain: dict[str, Any] = OmegaConf.to_container(hydra)  # type: ignore[assignment]
    known = {name: value for name, value in plain.items() if name != "env"}  # Hydra's, and not in its schema
    try:
        OmegaConf.merge(OmegaConf.structured(HydraConf), known)
    except (ConfigKeyError, ConfigAttributeError) as error:
        raise ConfigError(unknown_setting(f"hydra.{error.full_key}")) from error
    if (plain.get("job") or {}).get("chdir"):
        raise ConfigError("hydra.job.chdir=true: not supported; ${hydra:runtime.output_dir} names the run directory")


def settings_of(config: DictConfig, choices: Mapping[str, str], *, missing_ok: bool = False) -> Settings:
    """The settings that a configuration holds, composed by Hydra or read back from a run directory.

    Args:
        config: with or without interpolations.
        choices: the choice of each group, which `config` alone does not show.
        missing_ok: True to leave `???` in the open groups.

    Raises:
        ConfigError: the first setting that cannot work.
        OmegaConfBaseException: a setting is of another type, or not given.
    """
    content: dict[str, Any] = OmegaConf.to_container(config)  # type: ignore[assignment]
    try:
        whole = OmegaConf.merge(schema(), content)
    except (ConfigKeyError, ConfigAttributeError) as error:
        unknown = str(error.full_key)
        name, value = next(leaves(reduce(getitem, unknown.split("."), content), unknown), (unknown, {}))
        raise ConfigError(unknown_setting(name, f"{name}={as_configured(value)}")) from error
    assert isinstance(whole, DictConfig)
    check_read(whole, choices)
    plain: dict[str, Any] = OmegaConf.to_container(whole, resolve=True, throw_on_missing=not missing_ok)  # type: ignore[assignment]
    choices = with_own_names(choices, plain)
    stored = {**plain, "phases": expand_phases(plain, choices), "messages": expand_messages(plain["messages"])}
    closed = {key: value for key, value in plain.items() if key not in _OPEN}
    typed: Config = OmegaConf.to_object(OmegaConf.merge(schema(), closed))  # type: ignore[assignment]
    settings = Settings(
        choices=dict(choices),
        dataset=DatasetSettings.of(plain["dataset"]),
        model=ModelSettings.of(plain["model"]),
        partition=Target.of("partition", {k: v for k, v in plain["partition"].items() if k not in _OF_REPLICAS}),
        replicas=ReplicaSettings.of(plain["partition"], typed.averaging),
        phases=phases_of(stored, choices),
        optimizer=OptimizerSettings.of(plain["optimizer"]),
        lr_schedule=Target.of("lr_schedule", plain["lr_schedule"]),
        loss=Target.of("loss", plain["loss"]),
        metrics=_metrics_of(plain["metrics"]),
        callbacks=_callbacks_of(plain["callbacks"]),
        messages=MessageSettings.of(stored["messages"]),
        **{name: getattr(typed, name) for name in closed},
        stored=stored,
    )
    check(settings)
    return settings


def _metrics_of(section: Any) -> dict[str, MetricSettings]:
    if not isinstance(section, Mapping):
        raise ConfigError(f"metrics={as_configured(section)}: must map names to targets, such as metrics.f1.{TARGET}")
    return {str(name): MetricSettings.of(f"metrics.{name}", each) for name, each in section.items()}


def _callbacks_of(section: Any) -> tuple[Target, ...]:
    if not isinstance(section, list) or not all(isinstance(each, Mapping) for each in section):
        raise ConfigError(f"callbacks={as_configured(section)}: must be a list such as [{{{TARGET}: mylib.Mine}}]")
    return tuple(Target.of(f"callbacks[{number}]", each) for number, each in enumerate(section))


def with_choices_of(folder: Path | None, words: Sequence[str]) -> list[str]:
    """The words, and one that has Hydra look for choices in a folder, too; raises as `check_own_folder`."""
    if folder is None:
        return list(words)
    check_own_folder(folder)
    return [*words, search_path([folder.resolve()])]


def search_path(folders: Iterable[Path | str]) -> str:
    """The word that has Hydra look for choices in these folders as well."""
    return f"hydra.searchpath=[{','.join(quoted(f'file://{folder}') for folder in folders)}]"


def quoted(text: str) -> str:
    """A value in quotes of Hydra's grammar, with its quotes and backslashes escaped."""
    return QuotedString(text, Quote.single).with_quotes()


@contextlib.contextmanager
def own_hydra() -> Iterator[None]:
    """Initializes Hydra for pipetrain; restores the caller's Hydra state on exit."""
    register_configuration()
    version, running = VersionBase.instance(), GlobalHydra.instance().hydra
    base = version.version_base
    GlobalHydra.instance().clear()
    try:
        with initialize_config_dir(str(config_dir()), job_name="pipetrain", version_base="1.3"):
            yield
    finally:
        GlobalHydra.instance().hydra, version.version_base = running, base


def overrides_of(words: Sequence[str]) -> list[Override]:
    """The words in Hydra's grammar, read by the loader of the configuration, which resolves `glob`."""
    running = GlobalHydra.instance()
    if running.is_initialized():
        return OverridesParser.create(running.config_loader()).parse_overrides(with_names(words))
    with own_hydra():
        return overrides_of(words)


def check_words(words: Sequence[str]) -> None:
    """Checks words that Hydra would take, or refuse without naming them, such as `~train` or `hydra.run.dir=`.

    Raises:
        ConfigError: a word cannot work.
        MissingConfigException: a choice is not text, such as a number.
    """
    for word, each in zip(words, overrides_of(words), strict=True):
        name = each.key_or_group
        if each.is_delete():
            if name in _SECTIONS or name in groups().keys() - {"experiment"}:
                raise ConfigError(f"{word}: every run needs this; choose or set something else instead")
        elif name in (*groups(), *_FOLDERS, "hydra.output_subdir"):
            for value in each.sweep_iterator() if each.is_sweep_override() else [each.value()]:
                _check_word(word, name, value)


def _check_word(word: str, name: str, value: Any) -> None:
    if name in _FOLDERS:
        if not str(value).strip():
            raise ConfigError(f"{word}: must name a folder")
    elif name == "hydra.output_subdir":
        if value is not None:
            raise ConfigError(f"{word}: cannot be changed; a run writes this record into .hydra")
    # braces hold settings of the choice, and a list combines presets
    elif not isinstance(value, str | QuotedString | dict) and not (name == "experiment" and isinstance(value, list)):
        known = sorted(each for each in all_names(name) if "/" not in each)
        raise MissingConfigException(f"{word}: no name", f"{name}/{as_configured(value)}", known)


def combinations(overrides: Sequence[str]) -> Iterator[list[str]]:
    """The overrides of every member of a sweep such as `method=gpipe,pipedream`, in Hydra's grammar and order.

    Values that a later word replaces make no members.

    Raises:
        ConfigError: the sweep has no members.
    """
    parsed, choices = overrides_of(overrides), list[list[str]]()
    last = {each.get_key_element(): each for each in parsed}
    for each in parsed:
        name = each.get_key_element()
        if not each.is_sweep_override():
            choices.append([str(each.input_line)])
        elif each is last[name]:
            choices.append([f"{chosen_by(name)}={value}" for value in each.sweep_string_iterator()])
    if not all(choices):
        raise ConfigError(f"{' '.join(overrides)}: no run; a glob or range in it has no values")
    yield from (list(chosen) for chosen in itertools.product(*choices))


@dataclass(frozen=True)
class Composition:
    """The configuration that Hydra composes for a run, the choice of each group, and Hydra's own section."""

    config: DictConfig
    choices: Mapping[str, str]
    hydra: DictConfig

    def __post_init__(self) -> None:
        """Drops a preset's options of formats of messages that the words replace."""
        words: Any = OmegaConf.to_container(self.hydra.overrides.task)
        drop_replaced(self.config, overrides_of([each for each in words if each.lstrip("+").startswith("messages")]))

    @classmethod
    def of(cls, overrides: Sequence[str]) -> Self:
        """Composes the configuration of `pipetrain run` with these overrides; errors are Hydra's own.

        Raises:
            ConfigError: an override takes away a choice that every run needs.
        """
        with own_hydra():
            check_words(overrides)
            whole = compose("config", with_names(overrides), return_hydra_config=True)
        OmegaConf.set_readonly(whole.hydra, value=False)
        OmegaConf.set_struct(whole, value=False)
        config = OmegaConf.masked_copy(whole, [str(name) for name in whole if name != "hydra"])
        return cls(config, choices_made(whole.hydra.runtime.choices), whole.hydra)

    def varied(self, words: Sequence[str]) -> list[str]:
        """Overrides for what the preset itself sweeps (`hydra.sweeper.params`), except what the given words set."""
        params = self.hydra.sweeper.get("params") or {}
        given = {chosen_by(each.key_or_group) for each in overrides_of(words)}
        return [f"{name}={value}" for name, value in params.items() if chosen_by(name) not in given]


def check_presets_swept(words: Sequence[str]) -> None:
    """Raises a ConfigError if a preset of a sweep itself sweeps a setting that the words do not set.

    Hydra's sweepers would ignore its `hydra.sweeper.params`.
    """
    search = [word for word in words if word.lstrip("+").startswith("hydra.searchpath=")]
    for word, each in zip(words, overrides_of(words), strict=True):
        if each.key_or_group == "experiment" and each.is_sweep_override():
            for [preset] in combinations([word]):
                if left_out := Composition.of([*search, preset]).varied(words):
                    raise ConfigError(f"{word}: {preset} itself sweeps {' '.join(left_out)}; set this as well")


def composed(overrides: Sequence[str]) -> Settings:
    """Settings that `pipetrain run` would use with these overrides; open groups may lack mandatory values."""
    composition = Composition.of(overrides)
    return settings_of(composition.config, composition.choices, missing_ok=True)


def composed_one(words: Sequence[str], folder: Path | None = None) -> Settings:
    """The same for words that are not a sweep, else a ConfigError; with the choices of `--config-dir`."""
    chosen = list(itertools.islice(combinations(words), 2))
    if len(chosen) > 1:
        raise ConfigError(f"{' '.join(words)}: must have one value for each setting; this is a sweep")
    return composed(with_choices_of(folder, words))


_LONGEST_NAME = 80
_UNSAFE = re.compile(r"[^\w.=+-]+")


def folder_name(number: int, differing: str) -> str:
    """The folder of a run of a sweep, such as `3_pipedream_lr=0.1_seed=0`; its number alone if that gets too long.

    Args:
        number: of the run.
        differing: the settings that differ, such as `method=pipedream optimizer.lr=0.1 seed=0`.
    """
    # nearly every sweep varies `method=`, whose value says enough
    words = sorted(differing.split(" "), key=lambda word: not word.startswith("method="))
    short = [word.removeprefix("method=").lstrip("+") for word in words if word]
    name = "_".join([str(number), *(_UNSAFE.sub("-", without_section(word)) for word in short)])
    return name if len(name) <= _LONGEST_NAME else str(number)


def without_section(word: str) -> str:
    """`lr=0.01` of `optimizer.lr=0.01`, or the class alone of a target."""
    setting, equals, value = word.partition("=")
    last = chosen_by(setting).rpartition(".")[2]
    if last == TARGET:
        return value.rpartition(".")[2]
    return f"{last}={value}" if equals else word
