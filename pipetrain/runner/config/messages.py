"""The formats of messages as the configuration gives them: names of choices, or targets of the user's own."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, OmegaConf

from pipetrain.engine.errors import ConfigError, as_configured, check_whole
from pipetrain.runner.config.choices import all_names, names_of, section
from pipetrain.runner.config.instantiate import Target
from pipetrain.runner.config.schema import TARGET, MessagesConfig, leaves
from pipetrain.runner.config.suggestions import unknown_choice

GROUP = "message"
"""Folder of the choices, for either direction."""
DIRECTIONS = ("activations", "gradients")
PLAIN, CUSTOM = "plain", "custom"
_NAMED = re.compile(rf"messages\.({'|'.join(DIRECTIONS)})=(?!\{{)")


def with_names(words: Sequence[str]) -> list[str]:
    """The words of a command line, `messages.activations=int8` as `messages.activations.name=int8`.

    So a format can have options beside its name, such as `messages.activations.bits=4`.
    """
    return [_NAMED.sub(r"messages.\1.name=", word, count=1) if _NAMED.match(word) else word for word in words]


def without_names(text: str) -> str:
    """Text with the words of a command line as they were before `with_names`."""
    return re.sub(rf"\b(messages\.(?:{'|'.join(DIRECTIONS)}))\.name=", r"\1=", text)


@dataclass(frozen=True)
class MessageSettings(MessagesConfig):
    """The formats of messages: their targets, None for plain tensors, and when they matter."""

    activations: Target | None
    gradients: Target | None

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> Self:
        """The settings of the section `messages`, written out by `expand_messages`."""
        if (every := content["error_every"]) is not None:
            check_whole("messages.error_every", every, least=1, otherwise="or null for never")
        formats = {direction: _target(f"messages.{direction}", content[direction]) for direction in DIRECTIONS}
        return cls(**{**content, **formats})

    @property
    def targets(self) -> dict[str, Target]:
        """The targets by direction, those of plain tensors left out."""
        found = zip(DIRECTIONS, (self.activations, self.gradients), strict=True)
        return {direction: target for direction, target in found if target is not None}


def _target(setting: str, content: Mapping[str, Any]) -> Target | None:
    options = {key: value for key, value in content.items() if key != "name"}
    if content["name"] == PLAIN:
        return None
    return Target.of(setting, {**section(GROUP, content["name"]), **options})


def chosen_by(setting: str) -> str:
    """`messages.activations` of `messages.activations.name`; other settings as they are."""
    section, _, last = setting.rpartition(".")
    return section if last == "name" and section.startswith("messages.") else setting


def drop_replaced(config: DictConfig, words: Iterable[Override]) -> None:
    """Drops what a preset sets for a direction whose format the words name."""
    given = {".".join(name.split(".")[:3]) for each in words for name, _ in leaves(each.value(), each.key_or_group)}
    for setting in {f"messages.{direction}" for direction in DIRECTIONS if f"messages.{direction}.name" in given}:
        options: Any = OmegaConf.to_container(OmegaConf.select(config, setting))
        kept = {key: value for key, value in options.items() if f"{setting}.{key}" in given}
        OmegaConf.update(config, setting, kept, merge=False)


def have_formats(settings: Mapping[str, Any]) -> bool:
    """True if the messages of a run with these settings, as its files hold them, are not all plain."""
    given = settings.get("messages", {})
    return any(given.get(direction, {}).get("name", PLAIN) != PLAIN for direction in DIRECTIONS)


def expand_messages(content: Any) -> dict[str, Any]:
    """The section `messages` with the name and all options of each format written out, as a run's files hold it.

    A format is its name, or a mapping of `name` and options.

    Raises:
        ConfigError: there is no such format, or plain tensors have options.
    """
    return {**content, **{direction: _expanded(direction, content[direction]) for direction in DIRECTIONS}}


def _expanded(direction: str, given: Any) -> dict[str, Any]:
    setting, options = f"messages.{direction}", dict(given) if isinstance(given, Mapping) else {"name": given}
    name = options.pop("name", None)
    name = PLAIN if name is None else name
    known = [*names_of(GROUP), *({CUSTOM} & all_names(GROUP))]
    if name not in known:
        raise ConfigError(f"{setting}={as_configured(name)}: {unknown_choice('format', str(name), known)}")
    if name == PLAIN:
        if options:
            option, value = next(iter(options.items()))
            raise ConfigError(
                f"{setting}.{option}={as_configured(value)}: {setting}=plain takes no options; name a format, such as "
                f"{setting}={CUSTOM if option == TARGET else 'int8'}"
            )
        return {"name": name}
    defaults = {key: value for key, value in section(GROUP, name).items() if key != TARGET or name == CUSTOM}
    return {"name": name, **defaults, **options}
